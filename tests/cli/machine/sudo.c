/* A stand-in for sudo without a password: `sudo [-n] PROGRAM ARGUMENT…` as root, with an environment of its own. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
	static char *environment[] = { "HOME=/root", "USER=root", "LOGNAME=root", "LANG=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	int first = count > 1 && !strcmp(words[1], "-n") ? 2 : 1;

	if (first >= count || setgid(0) || setuid(0)) {
		perror("sudo");
		return 1;
	}
	execvpe(words[first], words + first, environment);
	perror(words[first]);
	return 127;
}
