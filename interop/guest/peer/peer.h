/* The peer program: declarations. protocol.md describes the commands. */
#ifndef ROXIE_PEER_H
#define ROXIE_PEER_H

#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 3
/* The release of rdma-core that the program is compiled against; 0 if unknown. */
#ifndef RDMA_CORE_MAJOR
#define RDMA_CORE_MAJOR 0
#define RDMA_CORE_MINOR 0
#endif
/* FLUSH and ATOMIC WRITE. */
#define HAS_PLACEMENT (RDMA_CORE_MAJOR >= 45)
#define MAX_LINE 4096
#define MAX_ARGS 48
#define MAX_MRS 64
#define MAX_QPS 64
#define MAX_JOBS 16
#define MAX_AHS 16
#define MAX_SRQS 8
#define MAX_MWS 8
#define MAX_POLL 64

/* One request line, split in place: a verb, then key=value words. */
struct request {
	const char *verb;
	int count;
	const char *key[MAX_ARGS];
	const char *value[MAX_ARGS];
	bool failed; /* a value was missing or wrong, and the error reply is out */
};

/* line.c */
void request_parse(struct request *r, char *line);
/* Returns the value of `key`, or NULL. */
const char *text_or_null(struct request *r, const char *key);
/* Returns the value of `key`; replies with an error and sets `failed` if there is none. */
const char *text(struct request *r, const char *key);
uint64_t number(struct request *r, const char *key);
uint64_t number_or(struct request *r, const char *key, uint64_t otherwise);
/* Replies to a command that succeeded; the line starts with "ok". */
__attribute__((format(printf, 1, 2))) void ok(const char *format, ...);
/* Replies to a command that failed. `code` is an errno or 0. */
__attribute__((format(printf, 2, 3))) void err(int code, const char *format, ...);
/* Adds a line of a longer answer, before its "ok". */
__attribute__((format(printf, 1, 2))) void detail(const char *format, ...);
void raw_detail(const char *bytes, size_t length);
/* Sends the replies. False if the other side has closed the connection. */
bool flush_replies(int fd);

/* memory.c */
struct region {
	struct ibv_mr *mr;
	uint8_t *base;
	uint64_t start; /* address in work requests: 0 for a zero-based one */
	size_t size;
};
void pattern_fill(uint8_t *to, size_t length, uint64_t seed);
/* Returns the region that `mr=` names, or NULL after an error reply. */
struct region *region_of(struct request *r);
/* True if [offset, offset+length) lies in the region; else replies with an error. */
bool within(const struct region *region, uint64_t offset, uint64_t length);
/* Returns the flags of `access=`. */
int access_flags(struct request *r);
void cmd_mr(struct request *r);
void cmd_mr_free(struct request *r);
void cmd_fill(struct request *r);
void cmd_check(struct request *r);
void cmd_sum(struct request *r);
void cmd_peek(struct request *r);
void cmd_poke(struct request *r);
void memory_reset(void);

/* qp.c */
/* A queue pair has a completion queue of its own, for sends and receives alike. */
struct pair {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	uint32_t qkey;
	bool attached; /* to the multicast group, which the socket has joined */
	union ibv_gid group;
	int membership;
};
/* Returns the queue pair that `qp=` names, or NULL after an error reply. */
struct pair *pair_of(struct request *r);
void cmd_qp(struct request *r);
void cmd_connect(struct request *r);
void cmd_modify(struct request *r);
void cmd_query(struct request *r);
void cmd_qp_free(struct request *r);
void qp_reset(void);

/* work.c */
void cmd_recv(struct request *r);
void cmd_send(struct request *r);
void cmd_poll(struct request *r);

/* objects.c: return the object that a request names, or NULL after an error reply. */
struct ibv_ah *ah_of(struct request *r);
struct ibv_srq *srq_of(struct request *r);
struct ibv_mw *mw_of(struct request *r);
void cmd_ah(struct request *r);
void cmd_srq(struct request *r);
void cmd_srq_limit(struct request *r);
void cmd_mw(struct request *r);
void windows_reset(void);
void objects_reset(void);

/* multicast.c */
void cmd_attach(struct request *r);
void cmd_detach(struct request *r);
void cmd_member(struct request *r);
void cmd_datagram(struct request *r);
/* Must be called before the queue pair is destroyed, which fails in a group. */
int leave_group(struct pair *pair);

/* device.c */
extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern uint8_t port_number;
/* FLUSH rights of queue pairs: all that the device supports. */
extern int flush_rights;
/* Opens the device called `name`, or the first if NULL. False after a message to stderr. */
bool device_open(const char *name);
bool device_is_open(void);
/* All its objects must have been destroyed. */
void device_close(void);
bool parse_gid(const char *hex, union ibv_gid *gid);
void format_gid(const union ibv_gid *gid, char out[33]);
void cmd_hello(struct request *r);
void cmd_gids(struct request *r);
void cmd_events(struct request *r);
void cmd_counters(struct request *r);
/* Returns the monotonic clock in milliseconds. */
uint64_t now_ms(void);

/* jobs.c */
void cmd_spawn(struct request *r);
void cmd_wait(struct request *r);
void cmd_kill(struct request *r);
void cmd_listening(struct request *r);
void jobs_reset(void);

#endif
