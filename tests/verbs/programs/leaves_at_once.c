// Sends messages to itself over RC and ends after the last of them, by exit() and without destroying objects:
//   leaves_at_once exit      main calls it
//   leaves_at_once thread    another thread calls it, while main polls
//   leaves_at_once child     after a forked child has ended likewise
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); fflush(stdout); _exit(1); } } while (0)
#define MESSAGES 500
#define PSN 1000

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *sends, struct ibv_cq *receives)
{
    struct ibv_qp_init_attr init = { .send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 2 * MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

// Without a timeout, packets are sent once.
static void join(struct ibv_qp *qp, uint32_t to, const union ibv_gid *gid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .rq_psn = PSN,
        .sq_psn = PSN, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = 1, .hop_limit = 64 } } };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void *leave(void *unused)
{
    exit(0);
    return unused;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "exit";
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sends = ibv_create_cq(context, 2 * MESSAGES, NULL, NULL, 0);
    struct ibv_cq *receives = ibv_create_cq(context, MESSAGES, NULL, NULL, 0);
    CHECK(pd && sends && receives);
    struct ibv_qp *here = make(pd, sends, receives), *there = make(pd, sends, receives);
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 1, &gid));
    join(here, there->qp_num, &gid);
    join(there, here->qp_num, &gid);

    for (int n = 0; n < MESSAGES; n++) {
        struct ibv_recv_wr receive = { .wr_id = n }, *bad_receive;
        struct ibv_send_wr send = { .wr_id = n, .opcode = IBV_WR_SEND }, *bad_send;
        CHECK(!ibv_post_recv(there, &receive, &bad_receive));
        CHECK(!ibv_post_send(here, &send, &bad_send));
        struct ibv_wc wc;
        int came;
        while (!(came = ibv_poll_cq(receives, 1, &wc)))
            ;
        CHECK(came == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)n);
    }
    // The last message has arrived, and its acknowledgement is still to be sent.
    if (!strcmp(how, "child")) {
        pid_t pid = fork();
        if (!pid)
            exit(0);
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    }
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, leave, NULL));
        for (struct ibv_wc wc;;)
            ibv_poll_cq(receives, 1, &wc);
    }
    exit(0);
}
