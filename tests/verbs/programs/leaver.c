// Connects by rdma_cm and ends by _exit, without destroying objects, as soon as its message arrives: as fio's receiver does. Its client
// needs the acknowledgement of the message.
//   leaver ADDRESS serve     the server
//   leaver ADDRESS           the client
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) return perror(#what), printf("line %d: %s\n", __LINE__, #what), 1; } while (0)

static char buffer[64];

static struct rdma_addrinfo *where(const char *address, int flags)
{
    struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found = NULL;
    return rdma_getaddrinfo(address, "7471", &hints, &found) ? NULL : found;
}

static int serve(const char *address)
{
    struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct rdma_cm_id *listener, *id;
    struct rdma_addrinfo *here = where(address, RAI_PASSIVE);
    CHECK(here && !rdma_create_ep(&listener, here, NULL, &init));
    CHECK(!rdma_listen(listener, 1) && !rdma_get_request(listener, &id));
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    CHECK(mr && !rdma_post_recv(id, NULL, buffer, sizeof buffer, mr) && !rdma_accept(id, NULL));
    struct ibv_wc wc;
    CHECK(rdma_get_recv_comp(id, &wc) == 1);
    _exit(wc.status != IBV_WC_SUCCESS || strcmp(buffer, "good-bye"));
}

static int send_one(const char *address)
{
    struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1 };
    struct rdma_cm_id *id;
    struct rdma_addrinfo *there = where(address, 0);
    CHECK(there && !rdma_create_ep(&id, there, NULL, &init));
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    CHECK(mr && !rdma_connect(id, NULL));
    strcpy(buffer, "good-bye");
    CHECK(!rdma_post_send(id, NULL, buffer, sizeof buffer, mr, 0));
    struct ibv_wc wc;
    CHECK(rdma_get_send_comp(id, &wc) == 1);
    printf("%s\n", ibv_wc_status_str(wc.status));
    return wc.status != IBV_WC_SUCCESS;
}

int main(int count, char **words)
{
    CHECK(count >= 2);
    return count > 2 ? serve(words[1]) : send_one(words[1]);
}
