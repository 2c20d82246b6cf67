// Sends two datagrams by a send queue and a completion queue of one entry each, and polls only then: as ib_send_lat -e does if the
// answer to a message overtakes its acknowledgement.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) return printf("line %d: %s\n", __LINE__, #what), 1; } while (0)
#define QKEY 0x1234

// Lets the NIC make progress, which it does in calls like this one, without polling the queue under test.
static void pass(struct ibv_cq *other)
{
    struct ibv_wc wc;
    for (int i = 0; i < 100; i++) {
        ibv_poll_cq(other, 1, &wc);
        usleep(100);
    }
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sends = ibv_create_cq(context, 1, NULL, NULL, 0), *receives = ibv_create_cq(context, 1, NULL, NULL, 0);
    CHECK(pd && sends && receives && sends->cqe >= 1);

    struct ibv_qp_init_attr init = { .send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
        .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));

    struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } };
    CHECK(!ibv_query_gid(context, 1, 1, &to.grh.dgid));
    struct ibv_ah *ah = ibv_create_ah(pd, &to);
    CHECK(ah);
    for (int n = 0; n < 2; n++) {
        struct ibv_send_wr wr = { .wr_id = n, .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, QKEY } }, *bad;
        CHECK(!ibv_post_send(qp, &wr, &bad));
        pass(receives);
    }
    struct ibv_wc wc[3];
    CHECK(ibv_poll_cq(sends, 3, wc) == 2);
    CHECK(wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == 0 && wc[1].status == IBV_WC_SUCCESS && wc[1].wr_id == 1);
    return 0;
}
