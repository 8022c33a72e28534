"""Assembles PTX programs with ptxas and checks the disassembly for required machine instructions.

    python3 .ci/assemble.py FOLDER --ptxas FILE [--nvdisasm FILE [--without-keep wrong|right]] [--only ARCHITECTURE]

FOLDER is the output of the example `emit_ptx`: programs, and programs.txt with a line for each

    FILE ENTRY REGISTERS INSTRUCTIONS ARCHITECTURE..     instructions joined by commas, or `-`

A program fails for an architecture if ptxas rejects it or warns, if it spills registers, needs a stack, uses more registers
than its line allows, if the disassembly lacks one of the instructions, or if a product reads registers that were overwritten
(`overwritten`). Without nvdisasm, instructions are not checked. With --without-keep, the kernels that keep fragments in
registers are assembled once more without what keeps them there, and one has to be found wrong, or none: ptxas before CUDA 13.3
takes those registers. With --only, programs for that architecture alone. Prints a line for each failure, then `N passed, M failed`.
Exit code 1: a program failed; 2: the checks accepted a program that is wrong on purpose.
"""

import argparse
import concurrent.futures
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import namedtuple

Program = namedtuple("Program", "text entry registers instructions architecture")
STRICT = ["--verbose", "--warn-on-spills", "--warn-on-local-memory-usage", "--generate-line-info"]
# ptxas reports serialized wgmma and an ignored setmaxnreg not as warnings but as advisories numbered C75..
WARNING = re.compile(r".*(?:warning|\(C75[0-9]+\)).*")
NOTHING_SPILLED = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
INSTRUCTION_BYTES = 16
# nvdisasm takes a quarter of a second to start; larger batches would leave cores idle at the end.
PROGRAMS_AT_ONCE = 40


def machine_code(cubin):
    """Returns the machine code of an ELF file with one kernel."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, sections + i * size) for i in range(count)]
    names = headers[of_names][4]
    return b"".join(
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in headers
        if cubin.startswith(b".text.", names + name)
    )


def assemble(ptxas, program, folder):
    """Returns (reason for failure or None, machine code)."""
    handle, cubin = tempfile.mkstemp(dir=folder)
    os.close(handle)
    command = [ptxas, *STRICT, "--gpu-name", program.architecture, program.text, "--output-file", cubin]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = done.stdout
    with open(cubin, "rb") as file:
        code = file.read()
    os.remove(cubin)
    if done.returncode != 0:
        lines = said.splitlines() or ["ptxas failed without a message"]
        return next((line for line in lines if "error" in line or "fatal" in line), lines[-1]), b""
    if warning := WARNING.search(said):
        return warning.group(), b""
    if NOTHING_SPILLED not in said:
        frame = re.search(".*stack frame.*", said)
        return f"spills or a stack: {frame.group() if frame else 'unknown to ptxas'}", b""
    used = re.search(r"Used (\d+) registers", said)
    if not used or int(used.group(1)) > program.registers:
        return f"{used.group(1) if used else 'an unknown number of'} registers, expected at most {program.registers}", b""
    return None, machine_code(code)


def disassemble(nvdisasm, architecture, codes, folder):
    """Returns the disassembly of each of `codes` and the position of its first instruction, which targets of branches count
    from; from one nvdisasm call, split by instruction counts."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"".join(codes))
        file.flush()
        command = [nvdisasm, "--binary", architecture.replace("sm_", "SM"), file.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"nvdisasm: {done.stdout.strip()[-300:]}")
    lines = re.findall(r"^\s*/\*[0-9a-f]+\*/(\s.*)$", done.stdout, re.MULTILINE)
    counts = [len(code) // INSTRUCTION_BYTES for code in codes]
    if len(lines) != sum(counts):
        sys.exit(f"nvdisasm: {len(lines)} instructions for {architecture}, expected {sum(counts)} of {INSTRUCTION_BYTES} bytes")
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [("\n".join(lines[start : start + count]), start) for start, count in zip(starts, counts)]


INSTRUCTION = re.compile(r"^\s*(?:@(!?U?P\w+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);")
# A product reads R8 to R11, which are loaded before the loop and packed anew in it.
OVERWRITTEN = """
    LDSM.16.M88.4 R8, [R2] ;
    HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], RZ, !UPT ;
    F2FP.BF16.F32.PACK_AB R8, R3, R4 ;
    @!P0 BRA 0x10 ;
    EXIT ;""".lstrip("\n")
NO_RESULT = "STS STG ST RED STSM BRA SYNCS UTMALDG EXIT BAR ISETP FSETP NOP WARPGROUP".split()


def results(operation, operands):
    """Numbers of the registers that an instruction writes, as far as operands of products can be among them."""
    head = operation.split(".")[0]
    first = next((x for x in map(str.strip, operands.split(",")) if not re.match(r"!?U?P\w$", x)), "")
    register = re.match(r"R(\d+)", first)
    if head in NO_RESULT or not register:
        return []
    if head == "HGMMA":
        count = int(re.search(r"64x(\d+)x", operation).group(1)) // 2
    elif head == "LDSM":
        count = int(operation[-1]) if operation[-2:-1] == "." else 1
    elif ".128" in operation:
        count = 4
    elif "WIDE" in operation or head == "CS2R" and ".32" not in operation:
        count = 2
    else:
        count = 2 if ".64" in operation and head in ("LDG", "LDS", "LD", "LDC") else 1
    return range(int(register.group(1)), int(register.group(1)) + count)


def overwritten(text, start):
    """Returns a complaint if a product (HGMMA) reads an A operand in registers whose reaching definitions are a load (LDSM)
    on one path and something else on another, else None. Targets of branches count from instruction `start`.

    ptxas 12.9 and 13.0 give registers of fragments that only products in a loop read to other values within the loop.
    """
    instructions = [INSTRUCTION.match(line).groups() for line in text.splitlines()]
    reads = {}
    for i, (_, operation, operands) in enumerate(instructions):
        if operation.startswith("HGMMA") and (a := re.match(r"R\d+, R(\d+),", operands)):
            reads[i] = range(int(a.group(1)), int(a.group(1)) + 4)
    watched = {register for registers in reads.values() for register in registers}
    if not watched:
        return None

    def behind(i):
        """Instructions that can follow instruction i."""
        predicate, operation, operands = instructions[i]
        following = [] if operation in ("BRA", "EXIT") and not predicate else [i + 1]
        if operation.startswith("BRA"):
            following.append(int(re.search(r"0x([0-9a-f]+)", operands).group(1), 16) // INSTRUCTION_BYTES - start)
        return [i for i in following if i < len(instructions)]

    def after(i, before):
        """Reaching definitions after instruction i: register to the instructions that may have written it."""
        predicate, operation, operands = instructions[i]
        written = [register for register in results(operation, operands) if register in watched]
        kept = before if written and predicate else {}
        return {**before, **{register: {i} | kept.get(register, set()) for register in written}}

    reaching = {0: {}}
    open_ends = [0]
    while open_ends:
        i = open_ends.pop()
        left = after(i, reaching[i])
        for following in behind(i):
            known = reaching.get(following)
            merged = {register: set(of) for register, of in (known or {}).items()}
            for register, of in left.items():
                merged[register] = merged.get(register, set()) | of
            if merged != known:
                reaching[following] = merged
                open_ends.append(following)
    for i, registers in reads.items():
        for register in registers:
            writers = {instructions[j][1].split(".")[0] for j in reaching.get(i, {}).get(register, ())}
            if "LDSM" in writers and len(writers) > 1:
                return f"a product reads R{register}, which LDSM loads and {', '.join(sorted(writers - {'LDSM'}))} overwrites"
    return None


def check(tools, programs, folder):
    """Returns the reason for failure, or None, of each program."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda program: assemble(tools.ptxas, program, folder), programs))
        complaints = [complaint for complaint, _ in found]
        batches = {}
        for i, program in enumerate(programs):
            if tools.nvdisasm and complaints[i] is None and program.instructions:
                of_architecture = batches.setdefault(program.architecture, [[]])
                if len(of_architecture[-1]) == PROGRAMS_AT_ONCE:
                    of_architecture.append([])
                of_architecture[-1].append(i)
        batches = [(architecture, batch) for architecture, all_of_it in batches.items() for batch in all_of_it]

        def text(batch):
            return disassemble(tools.nvdisasm, batch[0], [found[i][1] for i in batch[1]], folder)

        for (_, batch), texts in zip(batches, pool.map(text, batches)):
            for i, (text, start) in zip(batch, texts):
                lacks = [x for x in programs[i].instructions if not re.search(r"\s" + re.escape(x), text)]
                complaints[i] = f"the machine code has no {', '.join(lacks)}" if lacks else overwritten(text, start)
    return complaints


def without_keep(program, folder):
    """Returns the program without the loads that `keep` in kernels/cuda/src/attention/sm90_backward.rs puts behind a condition
    that never holds, or None if it has none."""
    with open(program.text, encoding="utf-8") as file:
        text = file.read()
    never = re.findall(r"setp\.eq\.u32 (%\w+), %\w+, 4294967295;", text)
    if not never:
        return None
    for predicate in never:
        text = text.replace(f"@!{predicate} bra", "bra")
    stripped = os.path.join(folder, os.path.basename(program.text))
    with open(stripped, "w", encoding="utf-8") as file:
        file.write(text)
    return program._replace(text=stripped)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ptxas", required=True)
    parser.add_argument("--nvdisasm")
    parser.add_argument("--without-keep", choices=["wrong", "right"])
    parser.add_argument("--only")
    tools = parser.parse_args()
    programs = []
    with open(os.path.join(tools.folder, "programs.txt"), encoding="utf-8") as file:
        for line in file:
            text, entry, registers, instructions, *architectures = line.split()
            wanted = [] if instructions == "-" else instructions.split(",")
            text = os.path.join(tools.folder, text)
            if tools.only is None or architectures == [tools.only]:
                programs += [Program(text, entry, int(registers), wanted, architecture) for architecture in architectures]
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "broken.ptx")
        with open(programs[0].text, encoding="utf-8") as whole, open(broken, "w", encoding="utf-8") as file:
            file.write("broken\n" + whole.read())
        wrong = [programs[0]._replace(text=broken), programs[0]._replace(registers=1)]
        if tools.nvdisasm:
            wrong.append(programs[0]._replace(instructions=["NOSUCH"]))
        if None in check(tools, wrong, folder) or not overwritten(OVERWRITTEN, 0):
            print("a broken text, an exceeded register budget, a missing instruction or an overwritten operand was accepted; "
                  "the results are invalid", file=sys.stderr)
            sys.exit(2)
        complaints = check(tools, programs, folder)
        if tools.without_keep:
            stripped = [kept for program in programs if (kept := without_keep(program, folder))]
            found = [complaint for complaint in check(tools, stripped, folder) if complaint]
            is_wrong = any("overwrites" in complaint for complaint in found)
            programs.append(programs[0]._replace(entry="kernels without `keep`"))
            complaints.append(None if stripped and is_wrong == (tools.without_keep == "wrong") else
                              f"{len(found)} of {len(stripped)} are wrong ({found[:1]}), expected {tools.without_keep}")
    for program, complaint in zip(programs, complaints):
        if complaint is not None:
            print(f"FAILED {program.entry} for {program.architecture}: {complaint}")
    failed = sum(complaint is not None for complaint in complaints)
    print(f"{len(programs) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
