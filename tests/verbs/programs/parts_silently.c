// Connects to a server of rdma_cm and ends, without a word to it and without taking anything down:
//   parts_silently ADDRESS PORT [WAY]
// Ways other than `exit`: calls `exec`; closes its descriptors; is killed, also as a daemon, or after its parent. Some leave a process
// behind that sleeps.
#define _DEFAULT_SOURCE
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) return perror(#what), 1; } while (0)
#define IS(name) (!strcmp(way, name))

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4);
    const char *way = argc == 4 ? argv[3] : "exit";
    if (IS("daemon"))
        CHECK(!daemon(1, 1));
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *server;
    CHECK(!rdma_getaddrinfo(argv[1], argv[2], &hints, &server));
    struct ibv_qp_init_attr init = { .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct rdma_cm_id *id;
    CHECK(!rdma_create_ep(&id, server, NULL, &init));
    struct rdma_conn_param how = { .initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7 };
    CHECK(!rdma_connect(id, &how));
    puts("connected");
    fflush(stdout);
    // The NIC's thread may still have the message that completes the connection. A kernel has sent it by now.
    if (!IS("exit") && !IS("exec"))
        usleep(100000);
    if (IS("exec"))
        execlp("sleep", "sleep", "100", NULL);
    if (IS("close")) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        sleep(100);
    }
    if (IS("parent")) {
        kill(getppid(), SIGKILL);
        usleep(100000);
    }
    if (!IS("exit"))
        raise(SIGKILL);
    exit(0);
}
