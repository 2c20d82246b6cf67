/* A stream over ordinary sockets, as TCP programs use them: `plain_stream serve ADDRESS` and `plain_stream ADDRESS`. The client sends
 * numbered words, the server compares them and answers with their number. `-n` as the last word: non-blocking, with poll. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 7471
#define TOTAL (4u << 20)
#define PIECE (128u << 10)

static void check(int fine, const char *what)
{
	if (!fine) {
		perror(what);
		exit(1);
	}
}

static int again(int fd, short events, ssize_t done)
{
	struct pollfd one = { .fd = fd, .events = events };

	if (done >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
		return 0;
	check(poll(&one, 1, 20000) == 1, "poll");
	return 1;
}

static void all(int fd, void *at, size_t length, int sends)
{
	uint8_t *bytes = at;

	while (length) {
		ssize_t done = sends ? write(fd, bytes, length) : read(fd, bytes, length);

		if (again(fd, sends ? POLLOUT : POLLIN, done))
			continue;
		check(done > 0, sends ? "write" : "read");
		bytes += done;
		length -= done;
	}
}

int main(int count, char **words)
{
	int nonblocking = count > 2 && !strcmp(words[count - 1], "-n");
	int serves = count > 1 && !strcmp(words[1], "serve");
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	static uint32_t piece[PIECE / 4];
	uint32_t had = 0, next = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	check(fd >= 0 && count > 1 && inet_pton(AF_INET, words[serves ? 2 : 1], &address.sin_addr) == 1, "socket");
	if (serves) {
		int listener = fd;

		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		check(!bind(listener, (void *)&address, sizeof(address)), "bind");
		check(!listen(listener, 1), "listen");
		fd = accept(listener, NULL, NULL);
		check(fd >= 0, "accept");
	} else {
		check(!connect(fd, (void *)&address, sizeof(address)), "connect");
	}
	if (nonblocking)
		check(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
	while (had < TOTAL) {
		for (size_t i = 0; i < PIECE / 4 && !serves; i++)
			piece[i] = next++;
		all(fd, piece, PIECE, !serves);
		for (size_t i = 0; i < PIECE / 4 && serves; i++) {
			errno = EBADMSG;
			check(piece[i] == next++, "data");
		}
		had += PIECE;
	}
	all(fd, &had, sizeof(had), serves);
	check(had == TOTAL, "answer");
	printf("%u bytes\n", had);
	/* Once the client has disconnected, it has the answer. */
	if (serves)
		check(read(fd, piece, 1) <= 0, "end");
	close(fd);
	return 0;
}
