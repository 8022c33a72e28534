/* The exchange of engine/src/communicator/all_reduce.rs for SimGrid, without the additions: who sends how many bytes to whom.
 * SMPI runs no threads, so this program stands for Rust's.
 *
 *   exchange BYTES LANES      prints: ranks, milliseconds of the exchange, milliseconds of MPI_Allreduce
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;

static long min(long a, long b) { return a < b ? a : b; }

/* Number of subtrees that the lanes of a rank make up, as lanes::subtrees. */
static int subtrees(int of, int lanes) {
  int start = (long)of * lanes / size, end = (long)(of + 1) * lanes / size, count = 0;
  while (start < end) {
    int width = 1;
    while (start % (2 * width) == 0 && start + 2 * width <= end)
      width *= 2;
    start += width;
    count++;
  }
  return count;
}

static long slice(long len, int of) { return len / size + (of < len % size); }

static void exchange(char *out, long sent, int to, char *in, long received, int from) {
  MPI_Sendrecv(out, (int)sent, MPI_BYTE, to, 0, in, (int)received, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void halving(char *out, char *in, long bytes) {
  long part = bytes / 2;
  for (int distance = 1; distance < size; distance *= 2, part /= 2)
    exchange(out, part, rank ^ distance, in, part, rank ^ distance);
  for (int distance = size / 2; distance >= 1; distance /= 2) {
    part = part == 0 ? 1 : part * 2;
    exchange(out, min(part, bytes / 2), rank ^ distance, in, min(part, bytes / 2), rank ^ distance);
  }
}

static void by_slices(char *out, char *in, long bytes, int lanes) {
  for (int step = 1; step < size; step++) {
    int to = (rank + step) % size, from = (rank + size - step) % size;
    exchange(out, min(subtrees(rank, lanes) * slice(bytes, to), bytes), to, in,
             min(subtrees(from, lanes) * slice(bytes, rank), bytes), from);
  }
  for (int step = 0; step < size - 1; step++)
    exchange(out, slice(bytes, (rank + size - step) % size), (rank + 1) % size, in,
             slice(bytes, (rank + 2 * size - step - 1) % size), (rank + size - 1) % size);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  long bytes = atol(argv[1]);
  int lanes = atoi(argv[2]);
  char *out = SMPI_SHARED_MALLOC(bytes), *in = SMPI_SHARED_MALLOC(bytes);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  if (size & (size - 1))
    by_slices(out, in, bytes, lanes);
  else
    halving(out, in, bytes);
  MPI_Barrier(MPI_COMM_WORLD);
  double ours = MPI_Wtime() - start;
  start = MPI_Wtime();
  MPI_Allreduce(out, in, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  double theirs = MPI_Wtime() - start;
  if (rank == 0)
    printf("RESULT %d %.1f %.1f\n", size, 1e3 * ours, 1e3 * theirs);
  SMPI_SHARED_FREE(out);
  SMPI_SHARED_FREE(in);
  MPI_Finalize();
  return 0;
}
