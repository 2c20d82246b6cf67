/* Symbols that providers of other devices (libmlx5, libefa and others) import from libibverbs.
 *
 * Programs load providers with their libraries. A provider loads only if every symbol exists under the version of the interface between
 * library and providers: 33 in rdma-core 33, 34 until 56, then 57, 59, 64, 65. This library never asks a provider for a device, so the
 * functions only fail. Each of them is in every version, because a function unknown to an older interface does no harm there. The
 * versions are in libibverbs.map. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* Functions that return 0 or an error number. */
int roxie_no_kernel(void)
{
	errno = ENOSYS;
	return ENOSYS;
}

/* Functions that return a descriptor, or -1 with errno set. */
int roxie_no_descriptor(void)
{
	errno = ENOSYS;
	return -1;
}

/* Functions that return an object, or NULL with errno set. */
void *roxie_no_object(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

/* Functions without a result: a provider registers itself, logs, or frees an object. The log function is variadic; its arguments are
   ignored. */
void roxie_nothing(void)
{
}

/* Returns the size of a provider's command, which is never sent. */
unsigned int roxie_final_num_attrs(unsigned int count, void *link);
unsigned int roxie_final_num_attrs(unsigned int count, void *link)
{
	(void)link;
	return count;
}

/* Flag of a provider: its objects may outlive the device. */
_Bool roxie_no_disassociate_destroy = 0;

/* Functions with a result, implemented in Rust. */
int roxie_query_gid_type(void *context, uint8_t port, unsigned int index, unsigned int *kind);
int roxie_private_query_gid_type(void *context, uint8_t port, unsigned int index, unsigned int *kind);
int roxie_private_query_gid_type(void *context, uint8_t port, unsigned int index, unsigned int *kind)
{
	return roxie_query_gid_type(context, port, index, kind);
}

const char *roxie_wr_opcode_str(unsigned int opcode);
const char *roxie_private_wr_opcode_str(unsigned int opcode);
const char *roxie_private_wr_opcode_str(unsigned int opcode)
{
	return roxie_wr_opcode_str(opcode);
}

/* Reads a sysfs file of the device for a provider. Roxie has none. */
int roxie_no_file(void);
int roxie_no_file(void)
{
	errno = ENOENT;
	return -1;
}

/* Defines `name` in version `node` as an alias of `of`. New programs would link to the default version (@@), but none does. */
#define IN(node, at, name, of)                                                                     \
	extern __typeof__(of) roxie_##node##_##name __attribute__((alias(#of), visibility("default"))); \
	__asm__(".symver roxie_" #node "_" #name ", " #name at "IBVERBS_PRIVATE_" #node)
#define IN_EACH(name, of)           \
	IN(33, "@", name, of);      \
	IN(34, "@@", name, of);     \
	IN(57, "@", name, of);      \
	IN(59, "@", name, of);      \
	IN(64, "@", name, of);      \
	IN(65, "@", name, of)

IN(33, "@@", verbs_register_driver_33, roxie_nothing);
IN(34, "@@", verbs_register_driver_34, roxie_nothing);
IN(57, "@@", verbs_register_driver_57, roxie_nothing);
IN(59, "@@", verbs_register_driver_59, roxie_nothing);
IN(64, "@@", verbs_register_driver_64, roxie_nothing);
IN(65, "@@", verbs_register_driver_65, roxie_nothing);

IN_EACH(__ioctl_final_num_attrs, roxie_final_num_attrs);
IN_EACH(__verbs_log, roxie_nothing);
IN_EACH(_verbs_init_and_alloc_context, roxie_no_object);
IN_EACH(execute_ioctl, roxie_no_kernel);
IN_EACH(ibv_cmd_advise_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_alloc_dm, roxie_no_kernel);
IN_EACH(ibv_cmd_alloc_dmah, roxie_no_kernel);
IN_EACH(ibv_cmd_alloc_mw, roxie_no_kernel);
IN_EACH(ibv_cmd_alloc_pd, roxie_no_kernel);
IN_EACH(ibv_cmd_attach_mcast, roxie_no_kernel);
IN_EACH(ibv_cmd_close_xrcd, roxie_no_kernel);
IN_EACH(ibv_cmd_create_ah, roxie_no_kernel);
IN_EACH(ibv_cmd_create_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_create_counters, roxie_no_kernel);
IN_EACH(ibv_cmd_create_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_create_cq_ex, roxie_no_kernel);
IN_EACH(ibv_cmd_create_cq_ex2, roxie_no_kernel);
IN_EACH(ibv_cmd_create_flow, roxie_no_kernel);
IN_EACH(ibv_cmd_create_flow_action_esp, roxie_no_kernel);
IN_EACH(ibv_cmd_create_qp, roxie_no_kernel);
IN_EACH(ibv_cmd_create_qp_ex, roxie_no_kernel);
IN_EACH(ibv_cmd_create_qp_ex2, roxie_no_kernel);
IN_EACH(ibv_cmd_create_rwq_ind_table, roxie_no_kernel);
IN_EACH(ibv_cmd_create_srq, roxie_no_kernel);
IN_EACH(ibv_cmd_create_srq_ex, roxie_no_kernel);
IN_EACH(ibv_cmd_create_wq, roxie_no_kernel);
IN_EACH(ibv_cmd_dealloc_mw, roxie_no_kernel);
IN_EACH(ibv_cmd_dealloc_pd, roxie_no_kernel);
IN_EACH(ibv_cmd_dereg_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_ah, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_counters, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_flow, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_flow_action, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_qp, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_rwq_ind_table, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_srq, roxie_no_kernel);
IN_EACH(ibv_cmd_destroy_wq, roxie_no_kernel);
IN_EACH(ibv_cmd_detach_mcast, roxie_no_kernel);
IN_EACH(ibv_cmd_export_dmabuf_fd, roxie_no_descriptor);
IN_EACH(ibv_cmd_free_dm, roxie_no_kernel);
IN_EACH(ibv_cmd_free_dmah, roxie_no_kernel);
IN_EACH(ibv_cmd_get_context, roxie_no_kernel);
IN_EACH(ibv_cmd_inc_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_inc_err_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_flow_action_esp, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_qp, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_qp_ex, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_srq, roxie_no_kernel);
IN_EACH(ibv_cmd_modify_wq, roxie_no_kernel);
IN_EACH(ibv_cmd_open_qp, roxie_no_kernel);
IN_EACH(ibv_cmd_open_xrcd, roxie_no_kernel);
IN_EACH(ibv_cmd_poll_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_post_recv, roxie_no_kernel);
IN_EACH(ibv_cmd_post_send, roxie_no_kernel);
IN_EACH(ibv_cmd_post_srq_recv, roxie_no_kernel);
IN_EACH(ibv_cmd_qp_attach_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_query_comp_cntr_caps, roxie_no_kernel);
IN_EACH(ibv_cmd_query_context, roxie_no_kernel);
IN_EACH(ibv_cmd_query_device_any, roxie_no_kernel);
IN_EACH(ibv_cmd_query_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_query_port, roxie_no_kernel);
IN_EACH(ibv_cmd_query_port_speed, roxie_no_kernel);
IN_EACH(ibv_cmd_query_qp, roxie_no_kernel);
IN_EACH(ibv_cmd_query_srq, roxie_no_kernel);
IN_EACH(ibv_cmd_read_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_read_counters, roxie_no_kernel);
IN_EACH(ibv_cmd_read_err_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_reg_dm_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_reg_dmabuf_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_reg_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_reg_mr_ex, roxie_no_kernel);
IN_EACH(ibv_cmd_req_notify_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_rereg_mr, roxie_no_kernel);
IN_EACH(ibv_cmd_resize_cq, roxie_no_kernel);
IN_EACH(ibv_cmd_set_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_cmd_set_err_comp_cntr, roxie_no_kernel);
IN_EACH(ibv_dmabuf_heap_alloc, roxie_no_object);
IN_EACH(ibv_dmabuf_heap_cc_shared_init, roxie_no_object);
IN_EACH(ibv_dmabuf_heap_destroy, roxie_nothing);
IN_EACH(ibv_dmabuf_heap_free, roxie_nothing);
IN_EACH(ibv_query_gid_type, roxie_private_query_gid_type);
IN_EACH(ibv_read_ibdev_sysfs_file, roxie_no_file);
IN_EACH(ibv_wr_opcode_str, roxie_private_wr_opcode_str);
IN_EACH(verbs_allow_disassociate_destroy, roxie_no_disassociate_destroy);
IN_EACH(verbs_init_cq, roxie_nothing);
IN_EACH(verbs_open_device, roxie_no_object);
IN_EACH(verbs_set_ops, roxie_nothing);
IN_EACH(verbs_uninit_context, roxie_nothing);
