#define _GNU_SOURCE

/* Version 1.0 of the interface (2006), with other structures. Its functions fail with ENOSYS. */

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define OLD(name) __asm__(".symver roxie_1_0_" #name ", " #name "@IBVERBS_1.0")
#define REFUSE(type, name, value)              \
	type roxie_1_0_##name(void);           \
	type roxie_1_0_##name(void)            \
	{                                      \
		errno = ENOSYS;                \
		return value;                  \
	}                                      \
	OLD(name)

REFUSE(int, ibv_ack_async_event, 0);
REFUSE(int, ibv_ack_cq_events, 0);
REFUSE(void *, ibv_alloc_pd, NULL);
REFUSE(int, ibv_attach_mcast, ENOSYS);
REFUSE(int, ibv_close_device, ENOSYS);
REFUSE(void *, ibv_create_ah, NULL);
REFUSE(void *, ibv_create_cq, NULL);
REFUSE(void *, ibv_create_qp, NULL);
REFUSE(void *, ibv_create_srq, NULL);
REFUSE(int, ibv_dealloc_pd, ENOSYS);
REFUSE(int, ibv_dereg_mr, ENOSYS);
REFUSE(int, ibv_destroy_ah, ENOSYS);
REFUSE(int, ibv_destroy_cq, ENOSYS);
REFUSE(int, ibv_destroy_qp, ENOSYS);
REFUSE(int, ibv_destroy_srq, ENOSYS);
REFUSE(int, ibv_detach_mcast, ENOSYS);
REFUSE(int, ibv_free_device_list, 0);
REFUSE(int, ibv_get_async_event, -1);
REFUSE(int, ibv_get_cq_event, -1);
REFUSE(unsigned long long, ibv_get_device_guid, 0);
REFUSE(void *, ibv_get_device_list, NULL);
REFUSE(void *, ibv_get_device_name, NULL);
REFUSE(int, ibv_modify_qp, ENOSYS);
REFUSE(int, ibv_modify_srq, ENOSYS);
REFUSE(void *, ibv_open_device, NULL);
REFUSE(int, ibv_query_device, ENOSYS);
REFUSE(int, ibv_query_gid, -1);
REFUSE(int, ibv_query_pkey, -1);
REFUSE(int, ibv_query_port, ENOSYS);
REFUSE(int, ibv_query_qp, ENOSYS);
REFUSE(int, ibv_query_srq, ENOSYS);
REFUSE(void *, ibv_reg_mr, NULL);
REFUSE(int, ibv_resize_cq, ENOSYS);

/* Registration of providers before 2017. Ignored. */
void roxie_old_register_driver(const char *name, const void *init);
void roxie_old_register_driver(const char *name, const void *init)
{
	(void)name;
	(void)init;
}
__asm__(".symver roxie_old_register_driver, ibv_register_driver@IBVERBS_1.1");

/* pthread_sigmask for programs linked before glibc 2.32: the first glibc version of the processor. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "which version of the C library was its first for this processor?"
#endif
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int roxie_old_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int roxie_old_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	return pthread_sigmask(how, set, old);
}
__asm__(".symver roxie_old_pthread_sigmask, pthread_sigmask@" FIRST_GLIBC);

/* Removes the user's settings from a program with more rights than its user (setuid): captures, for example, are files
 * that the program would write. */
static void forget_settings(void)
{
	char **kept = environ;

	for (char **each = environ; each && *each; each++)
		if (strncmp(*each, "ROXIE_", 6))
			*kept++ = *each;
	if (kept)
		*kept = NULL;
}

/* Looks up the functions that follow the interposed ones. */
void roxie_find_next(void);
void roxie_find_next_exec(void);
__attribute__((constructor)) static void find_next(void)
{
	if (getauxval(AT_SECURE))
		forget_settings();
	roxie_find_next();
	roxie_find_next_exec();
}

/* Runs after the destructors of libraries that depend on this one. This library is never unloaded. */
void roxie_farewell(void);
__attribute__((destructor)) static void farewell(void)
{
	roxie_farewell();
}
