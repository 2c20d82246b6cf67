/* Starts itself by each exec function of the C library, with an LD_PRELOAD of its own: `execs WORD`, where WORD is the new LD_PRELOAD, or
 * `-` for none. Each child prints the function and its LD_PRELOAD. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *ways[] = { "execve",	 "execv",    "execvp",	 "execvpe",	"execl",	"execlp",
			      "execle",	 "fexecve",  "execveat", "posix_spawn", "posix_spawnp", "vfork" };

int main(int count, char **words)
{
	char variable[512];
	char *environment[] = { "A=1", variable, "B=2", NULL };

	if (count == 4 && !strcmp(words[1], "show")) {
		const char *list = getenv("LD_PRELOAD");

		printf("%s %s %s\n", words[2], list ? list : "none", words[3]);
		return 0;
	}
	if (count != 2)
		return 2;
	snprintf(variable, sizeof(variable), "LD_PRELOAD=%s", words[1]);
	if (!strcmp(words[1], "-"))
		strcpy(variable, "C=3");
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		const char *way = ways[i];
		char *self = "/proc/self/exe";
		char *child[] = { words[0], "show", (char *)way, "last", NULL };
		pid_t pid = 0;
		int status;

		if (!strcmp(way, "posix_spawn"))
			posix_spawn(&pid, self, NULL, NULL, child, environment);
		else if (!strcmp(way, "posix_spawnp"))
			posix_spawnp(&pid, self, NULL, NULL, child, environment);
		else if (!strcmp(way, "vfork")) {
			pid = vfork();
			if (!pid) {
				execve(self, child, environment);
				_exit(1);
			}
		} else {
			pid = fork();
		}
		if (!pid) {
			if (!strcmp(way, "execve"))
				execve(self, child, environment);
			if (!strcmp(way, "execvpe"))
				execvpe(self, child, environment);
			if (!strcmp(way, "execle"))
				execle(self, words[0], "show", way, "last", NULL, environment);
			if (!strcmp(way, "fexecve"))
				fexecve(open(self, O_RDONLY | O_CLOEXEC), child, environment);
			if (!strcmp(way, "execveat"))
				execveat(AT_FDCWD, self, child, environment, 0);
			environ = environment;
			if (!strcmp(way, "execv"))
				execv(self, child);
			if (!strcmp(way, "execvp"))
				execvp(self, child);
			if (!strcmp(way, "execl"))
				execl(self, words[0], "show", way, "last", NULL);
			if (!strcmp(way, "execlp"))
				execlp(self, words[0], "show", way, "last", NULL);
			return 1;
		}
		if (waitpid(pid, &status, 0) != pid || status)
			return 1;
	}
	return 0;
}
