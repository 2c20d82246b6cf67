// Connects to a server of rdma_cm and exits, without disconnecting and without destroying objects:
//   parts_silently ADDRESS PORT
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) do { if (!(what)) return perror(#what), 1; } while (0)

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *server;
    CHECK(!rdma_getaddrinfo(argv[1], argv[2], &hints, &server));
    struct ibv_qp_init_attr init = { .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct rdma_cm_id *id;
    CHECK(!rdma_create_ep(&id, server, NULL, &init));
    struct rdma_conn_param how = { .initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7 };
    CHECK(!rdma_connect(id, &how));
    puts("connected");
    exit(0);
}
