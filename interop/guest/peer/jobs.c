/* Stock programs as jobs: ibv_rc_pingpong, rping, perftest. */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A job's output is kept until `wait`, its last bytes if it is too long. */
#define MAX_OUTPUT (256u << 10)

struct job {
	pid_t pid; /* 0: the slot is free */
	int out;
	char *text;
	size_t length;
};
static struct job jobs[MAX_JOBS];

static struct job *job_of(struct request *r)
{
	uint64_t id = number(r, "job");

	if (r->failed)
		return NULL;
	if (id >= MAX_JOBS || !jobs[id].pid) {
		err(ENOENT, "no job %llu", (unsigned long long)id);
		return NULL;
	}
	return &jobs[id];
}

static void job_free(struct job *job)
{
	close(job->out);
	free(job->text);
	memset(job, 0, sizeof *job);
}

/* Ends a job's process group, waits for it and frees the slot. */
static void job_end(struct job *job)
{
	kill(-job->pid, SIGKILL);
	waitpid(job->pid, NULL, 0);
	job_free(job);
}

void jobs_reset(void)
{
	for (int i = 0; i < MAX_JOBS; i++)
		if (jobs[i].pid)
			job_end(&jobs[i]);
}

static void child(int out, char **argv)
{
	int nothing = open("/dev/null", O_RDONLY);

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(nothing, 0);
	dup2(out, 1);
	dup2(out, 2);
	execvp(argv[0], argv);
	dprintf(2, "%s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/* spawn prog=NAME arg=A arg=B ...: arguments in their order. No shell is involved. */
void cmd_spawn(struct request *r)
{
	char *argv[MAX_ARGS + 2] = { (char *)text(r, "prog") };
	int count = 1, id = 0, ends[2];

	if (r->failed)
		return;
	for (int i = 0; i < r->count; i++)
		if (strcmp(r->key[i], "arg") == 0)
			argv[count++] = (char *)r->value[i];
	while (id < MAX_JOBS && jobs[id].pid)
		id++;
	if (id == MAX_JOBS)
		return err(ENOSPC, "all %d jobs are in use: wait for or kill some", MAX_JOBS);
	if (pipe2(ends, O_CLOEXEC))
		return err(errno, "pipe: %s", strerror(errno));
	pid_t pid = fork();
	if (pid == 0)
		child(ends[1], argv);
	close(ends[1]);
	if (pid < 0) {
		int code = errno;
		close(ends[0]);
		return err(code, "fork: %s", strerror(code));
	}
	setpgid(pid, pid);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	jobs[id] = (struct job){ .pid = pid, .out = ends[0] };
	ok("job=%d pid=%d", id, (int)pid);
}

/* Reads the job's output so far. True at the end of the output. */
static bool drain(struct job *job)
{
	char chunk[4096];
	ssize_t n;

	while ((n = read(job->out, chunk, sizeof chunk)) > 0) {
		if (!job->text && !(job->text = malloc(MAX_OUTPUT)))
			continue;
		if (job->length + n > MAX_OUTPUT) {
			size_t excess = job->length + n - MAX_OUTPUT;
			memmove(job->text, job->text + excess, job->length - excess);
			job->length -= excess;
		}
		memcpy(job->text + job->length, chunk, n);
		job->length += n;
	}
	return n == 0;
}

/* Shows whole lines. The beginning of another line waits for its end, or for that of the job. */
static void show_output(struct job *job, bool ended)
{
	size_t start = 0;

	for (size_t i = 0; i < job->length; i++) {
		if (job->text[i] != '\n')
			continue;
		raw_detail(job->text + start, i - start);
		start = i + 1;
	}
	if (start < job->length && ended) {
		raw_detail(job->text + start, job->length - start);
		start = job->length;
	}
	job->length -= start;
	if (job->length)
		memmove(job->text, job->text + start, job->length);
}

/* wait job= timeout_ms=: its output so far, and its exit status if it has ended, which frees the slot. */
void cmd_wait(struct request *r)
{
	uint64_t until = now_ms() + number_or(r, "timeout_ms", 0);
	struct job *job = job_of(r);
	int status = 0;
	pid_t ended;

	if (!job || r->failed)
		return;
	for (;;) {
		bool eof = drain(job);
		ended = waitpid(job->pid, &status, WNOHANG);
		uint64_t now = now_ms();
		if (ended == job->pid || now >= until)
			break;
		struct pollfd ready = { .fd = eof ? -1 : job->out, .events = POLLIN };
		poll(&ready, 1, until - now < 20 ? (int)(until - now) : 20);
	}
	drain(job);
	show_output(job, ended == job->pid);
	if (ended != job->pid)
		return ok("exited=0");
	job_free(job);
	if (WIFSIGNALED(status))
		return ok("exited=1 signal=%d", WTERMSIG(status));
	ok("exited=1 rc=%d", WEXITSTATUS(status));
}

void cmd_kill(struct request *r)
{
	struct job *job = job_of(r);

	if (!job)
		return;
	drain(job);
	show_output(job, true);
	job_end(job);
	ok(" ");
}

/* True if a TCP socket listens on the port, by the kernel's table (state 0A). */
static bool listens(const char *table, unsigned port)
{
	FILE *f = fopen(table, "r");
	char row[512];
	bool found = false;

	while (f && !found && fgets(row, sizeof row, f)) {
		unsigned local, state;
		if (sscanf(row, "%*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2)
			found = state == 0x0A && local == port;
	}
	if (f)
		fclose(f);
	return found;
}

/* listening port= timeout_ms=: waits until a server listens. */
void cmd_listening(struct request *r)
{
	unsigned port = number(r, "port");
	uint64_t until = now_ms() + number_or(r, "timeout_ms", 0);

	if (r->failed)
		return;
	for (;;) {
		bool found = listens("/proc/net/tcp", port) || listens("/proc/net/tcp6", port);
		if (found || now_ms() >= until)
			return ok("listening=%d", found);
		usleep(5000);
	}
}
