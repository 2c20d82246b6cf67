/* The line protocol: requests in, replies out. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *out;
static size_t out_length, out_room;

static void append(const char *bytes, size_t length)
{
	if (out_length + length > out_room) {
		size_t room = (out_length + length) * 2 + 4096;
		char *larger = realloc(out, room);
		if (!larger) {
			fprintf(stderr, "roxie-peer: no memory for a reply of %zu bytes\n", out_length + length);
			exit(1);
		}
		out = larger;
		out_room = room;
	}
	memcpy(out + out_length, bytes, length);
	out_length += length;
}

/* A reply is one line: line ends in a message become spaces. */
static void append_line(const char *prefix, const char *format, va_list args)
{
	char body[MAX_LINE];
	int length = vsnprintf(body, sizeof body, format, args);

	if (length < 0)
		length = 0;
	if (length >= (int)sizeof body)
		length = sizeof body - 1;
	for (int i = 0; i < length; i++)
		if (body[i] == '\n' || body[i] == '\r')
			body[i] = ' ';
	append(prefix, strlen(prefix));
	if (length > 0) {
		append(" ", 1);
		append(body, length);
	}
	append("\n", 1);
}

void ok(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	append_line("ok", format, args);
	va_end(args);
}

void detail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	append_line("|", format, args);
	va_end(args);
}

void raw_detail(const char *bytes, size_t length)
{
	append("| ", 2);
	append(bytes, length);
	append("\n", 1);
}

void err(int code, const char *format, ...)
{
	char prefix[32];
	va_list args;

	snprintf(prefix, sizeof prefix, "err code=%d", code);
	va_start(args, format);
	append_line(prefix, format, args);
	va_end(args);
}

bool flush_replies(int fd)
{
	size_t sent = 0;

	while (sent < out_length) {
		ssize_t n = write(fd, out + sent, out_length - sent);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		sent += n;
	}
	bool all = sent == out_length;
	out_length = 0;
	return all;
}

void request_parse(struct request *r, char *line)
{
	char *save = NULL;
	char *word = strtok_r(line, " \t\r\n", &save);

	memset(r, 0, sizeof *r);
	r->verb = word ? word : "";
	while (word && (word = strtok_r(NULL, " \t\r\n", &save))) {
		char *equals = strchr(word, '=');
		if (!equals) {
			err(EINVAL, "\"%s\" is not key=value", word);
			r->failed = true;
			return;
		}
		if (r->count == MAX_ARGS) {
			err(E2BIG, "more than %d arguments", MAX_ARGS);
			r->failed = true;
			return;
		}
		*equals = 0;
		r->key[r->count] = word;
		r->value[r->count++] = equals + 1;
	}
}

const char *text_or_null(struct request *r, const char *key)
{
	for (int i = 0; i < r->count; i++)
		if (strcmp(r->key[i], key) == 0)
			return r->value[i];
	return NULL;
}

const char *text(struct request *r, const char *key)
{
	const char *value = text_or_null(r, key);

	if (!value && !r->failed) {
		err(EINVAL, "%s needs %s=", r->verb, key);
		r->failed = true;
	}
	return value;
}

static uint64_t to_number(struct request *r, const char *key, const char *value)
{
	char *end = NULL;

	errno = 0;
	unsigned long long n = strtoull(value, &end, 0);
	if ((errno || end == value || *end || value[0] == '-') && !r->failed) {
		err(EINVAL, "%s=%s is not a number", key, value);
		r->failed = true;
	}
	return n;
}

uint64_t number(struct request *r, const char *key)
{
	const char *value = text(r, key);

	return value ? to_number(r, key, value) : 0;
}

uint64_t number_or(struct request *r, const char *key, uint64_t otherwise)
{
	const char *value = text_or_null(r, key);

	return value ? to_number(r, key, value) : otherwise;
}
