// Each rank exchanges messages of many sizes with each other one, all to all and one-sided, and compares every byte.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char expected(int from, int to, int length, int place)
{
    return (unsigned char)(place * 31 + place / 253 + length + 7 * from + 13 * to);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    long total = 0, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int length = 1; length <= 1 << 18; length *= 8) {
        unsigned char *out = malloc((size_t)length * ranks), *in = calloc(ranks, length);
        for (int peer = 0; peer < ranks; peer++)
            for (int i = 0; i < length; i++)
                out[(size_t)peer * length + i] = expected(rank, peer, length, i);
        MPI_Alltoall(out, length, MPI_BYTE, in, length, MPI_BYTE, MPI_COMM_WORLD);
        for (int peer = 0; peer < ranks; peer++)
            for (int i = 0; i < length; i++)
                wrong += in[(size_t)peer * length + i] != expected(peer, rank, length, i);
        total += (long)length * ranks;
        free(out);
        free(in);
    }
    // One-sided: each rank writes to its part of all other windows, then reads its neighbour's window.
    enum { PART = 40000 };
    unsigned char *window, *part = malloc(PART);
    MPI_Win win;
    MPI_Win_allocate((MPI_Aint)PART * ranks, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    MPI_Win_fence(0, win);
    for (int peer = 0; peer < ranks; peer++) {
        for (int i = 0; i < PART; i++)
            part[i] = expected(rank, peer, PART, i);
        MPI_Put(part, PART, MPI_BYTE, peer, (MPI_Aint)PART * rank, PART, MPI_BYTE, win);
        MPI_Win_fence(0, win);
    }
    for (int peer = 0; peer < ranks; peer++)
        for (int i = 0; i < PART; i++)
            wrong += window[(size_t)PART * peer + i] != expected(peer, rank, PART, i);
    int next = (rank + 1) % ranks;
    MPI_Win_fence(0, win);
    MPI_Get(part, PART, MPI_BYTE, next, (MPI_Aint)PART * rank, PART, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < PART; i++)
        wrong += part[i] != expected(rank, next, PART, i);
    total += 2L * PART * ranks;
    MPI_Win_free(&win);
    long mine[2] = {rank + 1, wrong}, sum[2];
    MPI_Allreduce(mine, sum, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: %ld bytes each, %ld wrong, sum %ld\n", ranks, total, sum[1], sum[0]);
    MPI_Finalize();
    return sum[1] != 0 || sum[0] != (long)ranks * (ranks + 1) / 2;
}
