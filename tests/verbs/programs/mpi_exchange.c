// Two ranks exchange messages of many sizes, compare every byte, and add up over both.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char expected(int rank, int length, int place)
{
    return (unsigned char)(place * 31 + place / 253 + length + 7 * rank);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2) {
        fprintf(stderr, "%d ranks: 2 are wanted\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long total = 0, wrong = 0;
    for (int length = 1; length <= 1 << 20; length *= 4) {
        unsigned char *out = malloc(length), *in = calloc(1, length);
        for (int i = 0; i < length; i++)
            out[i] = expected(rank, length, i);
        MPI_Sendrecv(out, length, MPI_BYTE, !rank, 1, in, length, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < length; i++)
            wrong += in[i] != expected(!rank, length, i);
        total += length;
        free(out);
        free(in);
    }
    long mine = rank + 1, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d: %ld bytes, %ld wrong, sum %ld\n", rank, total, wrong, sum);
    MPI_Finalize();
    return wrong != 0 || sum != 3;
}
