/* Sends what the program has posted before an exec that ends the NIC, as an adapter would after it. And keeps this library in LD_PRELOAD
 * across exec. `env LD_PRELOAD=x program` would remove this library from the child, and with it the
 * interposed calls. The library is put back behind the other preloads: it must come before the C library, and some others must come
 * first (sanitizers). A child with no LD_PRELOAD, or an empty one, is left without preloads.
 *
 * Done only in a process that has this library by LD_PRELOAD itself. The functions may be called between vfork and exec, and in signal
 * handlers: they allocate nothing, take no lock, and write only to the stack. */

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Limits of the copies on the stack. A larger environment is passed on unchanged. */
#define MOST_VARIABLES 32768
#define LONGEST_LIST 32768

static const char name[] = "LD_PRELOAD=";
/* Name of this library in LD_PRELOAD; NULL: not listed. */
static const char *self;

typedef int execve_call(const char *, char *const[], char *const[]);
typedef int fexecve_call(int, char *const[], char *const[]);
typedef int execveat_call(int, const char *, char *const[], char *const[], int);
typedef int spawn_call(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
		       char *const[]);

static execve_call *next_execve, *next_execvpe;
static fexecve_call *next_fexecve;
static execveat_call *next_execveat;
static spawn_call *next_spawn, *next_spawnp;

static int lists(const char *list, const char *wanted)
{
	size_t length = strlen(wanted);

	for (;;) {
		size_t word = strcspn(list, ": ");

		if (word == length && !memcmp(list, wanted, length))
			return 1;
		if (!list[word])
			return 0;
		list += word + 1;
	}
}

void roxie_find_next_exec(void);
void roxie_find_next_exec(void)
{
	const char *list = getenv("LD_PRELOAD");
	Dl_info here;

	next_execve = (execve_call *)dlsym(RTLD_NEXT, "execve");
	next_execvpe = (execve_call *)dlsym(RTLD_NEXT, "execvpe");
	next_fexecve = (fexecve_call *)dlsym(RTLD_NEXT, "fexecve");
	next_execveat = (execveat_call *)dlsym(RTLD_NEXT, "execveat");
	next_spawn = (spawn_call *)dlsym(RTLD_NEXT, "posix_spawn");
	next_spawnp = (spawn_call *)dlsym(RTLD_NEXT, "posix_spawnp");
	if (list && dladdr((void *)roxie_find_next_exec, &here) && lists(list, here.dli_fname))
		self = here.dli_fname;
}

/* Position of LD_PRELOAD in an environment that does not list this library. */
struct gap {
	size_t variables, at;
	const char *list;
};

static struct gap look(char *const environment[])
{
	struct gap gap = { 0, 0, NULL };

	if (!self || !environment)
		return gap;
	for (; environment[gap.variables]; gap.variables++) {
		const char *variable = environment[gap.variables];

		if (strncmp(variable, name, sizeof(name) - 1))
			continue;
		gap.at = gap.variables;
		gap.list = variable + sizeof(name) - 1;
	}
	if (gap.list && (!*gap.list || lists(gap.list, self) || gap.variables > MOST_VARIABLES ||
			 strlen(gap.list) + strlen(self) > LONGEST_LIST))
		gap.list = NULL;
	return gap;
}

static char *const *fill(const struct gap *gap, char *const environment[], char **copy, char *variable)
{
	memcpy(copy, environment, (gap->variables + 1) * sizeof(*copy));
	stpcpy(stpcpy(stpcpy(stpcpy(variable, name), gap->list), ":"), self);
	copy[gap->at] = variable;
	return copy;
}

/* Returns the environment with this library among its preloads, on the caller's stack. */
#define COMPLETED(environment)                                                                                            \
	({                                                                                                                \
		char *const *all = (environment);                                                                         \
		struct gap gap = look(all);                                                                               \
		if (gap.list)                                                                                             \
			all = fill(&gap, all, alloca((gap.variables + 1) * sizeof(char *)),                               \
				   alloca(sizeof(name) + strlen(gap.list) + 1 + strlen(self)));                           \
		all;                                                                                                      \
	})

/* Does nothing between vfork and exec. */
void roxie_before_exec(void);

static int unknown(void)
{
	errno = ENOSYS;
	return -1;
}

int execve(const char *path, char *const words[], char *const environment[])
{
	char *const *all = COMPLETED(environment);

	roxie_before_exec();
	return next_execve ? next_execve(path, words, all) : (int)syscall(SYS_execve, path, words, all);
}

int execv(const char *path, char *const words[])
{
	return execve(path, words, environ);
}

int execvpe(const char *file, char *const words[], char *const environment[])
{
	roxie_before_exec();
	return next_execvpe ? next_execvpe(file, words, COMPLETED(environment)) : unknown();
}

int execvp(const char *file, char *const words[])
{
	return execvpe(file, words, environ);
}

int fexecve(int fd, char *const words[], char *const environment[])
{
	roxie_before_exec();
	return next_fexecve ? next_fexecve(fd, words, COMPLETED(environment)) : unknown();
}

int execveat(int folder, const char *path, char *const words[], char *const environment[], int flags)
{
	roxie_before_exec();
	return next_execveat ? next_execveat(folder, path, words, COMPLETED(environment), flags) : unknown();
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
		char *const words[], char *const environment[])
{
	if (!next_spawn)
		return ENOSYS;
	return next_spawn(pid, path, actions, attributes, words, COMPLETED(environment));
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
		 char *const words[], char *const environment[])
{
	if (!next_spawnp)
		return ENOSYS;
	return next_spawnp(pid, file, actions, attributes, words, COMPLETED(environment));
}

/* Returns the variadic arguments, terminated by a null pointer, on the caller's stack. */
#define WORDS(first, rest)                                                                                                \
	({                                                                                                                \
		va_list counted;                                                                                          \
		size_t count = 2, at = 1;                                                                                 \
		va_copy(counted, rest);                                                                                   \
		while (va_arg(counted, char *))                                                                           \
			count++;                                                                                          \
		va_end(counted);                                                                                          \
		char **words = alloca(count * sizeof(*words));                                                            \
		words[0] = (char *)(first);                                                                               \
		while (at < count)                                                                                        \
			words[at++] = va_arg(rest, char *);                                                               \
		words;                                                                                                    \
	})

int execl(const char *path, const char *first, ...)
{
	va_list rest;
	char **words;

	va_start(rest, first);
	words = WORDS(first, rest);
	va_end(rest);
	return execve(path, words, environ);
}

int execlp(const char *file, const char *first, ...)
{
	va_list rest;
	char **words;

	va_start(rest, first);
	words = WORDS(first, rest);
	va_end(rest);
	return execvpe(file, words, environ);
}

int execle(const char *path, const char *first, ...)
{
	va_list rest;
	char **words;
	char *const *environment;

	va_start(rest, first);
	words = WORDS(first, rest);
	environment = va_arg(rest, char *const *);
	va_end(rest);
	return execve(path, words, environment);
}
