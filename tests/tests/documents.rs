//! Tests of project files that crates cannot include, because they are outside of them.

use albert::pretrain::PretrainRecipe;
use albert_tasks::ablate::{Plan, Variant};

#[test]
fn the_readme_shows_the_recorded_losses() {
    let (readme, recorded) = (include_str!("../../README.md"), include_str!("../../cli/src/commands/verify.txt"));
    let losses =
        recorded.lines().find_map(|line| line.strip_prefix("pre-training f32: loss ")).expect("they are recorded");
    let mut shown = 0;
    for (step, loss) in (1..).zip(losses.split(' ')).filter(|&(step, _)| step == 1 || step % 10 == 0) {
        // In the format of `albert doctor --verify`.
        let line = format!("                  step {step:>2}  {loss}\n");
        assert!(readme.contains(&line), "{line} is expected in README.md");
        shown += 1;
    }
    assert_eq!(shown, 6);
}

#[test]
fn the_readme_shows_a_kernel_of_the_source() {
    let (readme, source) = (include_str!("../../README.md"), include_str!("../../kernels/src/softmax/cpu.rs"));
    let shown = readme.split("```rust,ignore\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown: String = shown.expect("it shows one").lines().map(|line| format!("    {line}\n")).collect();
    assert!(shown.lines().count() > 10 && source.contains(&shown), "README.md shows another kernel");
}

#[test]
fn the_plans_that_come_with_the_project_can_be_run() {
    for (text, count) in [
        (include_str!("../../benches/tasks/ablation.toml"), 9),
        (include_str!("../../benches/tasks/ablation-depth-width.toml"), 7),
    ] {
        let plan = Plan::from_toml(text).expect("it is a plan");
        let budgets: Vec<_> = plan.variants(4096).expect("its rows are recipes").iter().map(Variant::budget).collect();
        assert_eq!(budgets.len(), count, "{budgets:?}");
        assert!(budgets.iter().all(|budget| budget.tokens == budgets[0].tokens), "{budgets:?}");
    }
    let own = PretrainRecipe::from_toml(include_str!("../../benches/tasks/own.toml"), &[]).expect("it is a recipe");
    own.with_vocabulary(8192).expect("it takes a vocabulary");
}

#[test]
fn the_engine_page_lists_every_operation_and_shows_the_tested_manifest() {
    let page = include_str!("../../docs/engine.md");
    // Inside another workspace, its manifest needs a `[workspace]` section.
    let manifest = include_str!("../outside/Cargo.toml").strip_suffix("\n[workspace]\n").expect("it ends so");
    let manifest = manifest.replace("../../engine", "PATH/engine");
    assert!(page.contains(&format!("```toml\n{manifest}```")), "docs/engine.md shows another Cargo.toml");
    let columns = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        (cells.len() == 3).then(|| [names(cells[1]), names(cells[2])])
    };
    let table = page.split_once("| operation |").expect("it has the table").1;
    let rows: Vec<_> = table.lines().take_while(|line| line.contains('|')).filter_map(columns).collect();
    let listed = |column: usize| rows.iter().flat_map(|row| row[column].clone()).collect::<Vec<_>>();
    let is_name = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
    let ops = include_str!("../../engine/src/ops/mod.rs");
    let exported = ops.split("pub use ").skip(1).filter(|part| !part.starts_with("kernels"));
    let exported =
        exported.flat_map(|part| part.split(';').next().unwrap_or("").split(['{', '}', ',', ':', ' ', '\n']));
    let modules: Vec<&str> = ops.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    let functions = listed(1);
    for name in exported.filter(is_name) {
        let is_module_alone = modules.contains(&name) && !functions.iter().any(|listed| listed == name);
        assert!(is_module_alone || functions.iter().any(|listed| listed == name), "ops::{name} is not on the page");
    }
    let value = include_str!("../../engine/src/nn/value.rs");
    let methods = listed(0);
    for name in methods.iter().filter(|name| !name.starts_with("apply")) {
        let is_there =
            ["pub fn {}(", "        {}(", "        {};"].iter().any(|form| value.contains(&form.replace("{}", name)));
        assert!(is_there, "Value has no method {name}");
    }
    for name in &functions {
        assert!(
            ops.contains(&format!("{name},"))
                || ops.contains(&format!("{name}}}"))
                || ops.contains(&format!("::{name};")),
            "ops has no function {name}"
        );
    }
}
