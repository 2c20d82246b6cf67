// Makes a queue pair, then a child that lives on after it for 20 s.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = count ? ibv_open_device(devices[0]) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = pd ? ibv_create_cq(context, 4, NULL, NULL, 0) : NULL;
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    if (!cq || !ibv_create_qp(pd, &attr)) {
        perror("a queue pair");
        return 1;
    }
    if (fork() == 0) {
        sleep(20);
        _exit(0);
    }
    _exit(0);
}
