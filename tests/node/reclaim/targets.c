// SPDX-License-Identifier: Apache-2.0
/* Processes that are hard to end, by the first argument; each holds the file of the second open, as a GPU's client does
 * its device. Prints a byte when it stands. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void stand(void)
{
	if (write(1, "x", 1) != 1)
		_exit(2);
	for (;;)
		pause();
}

/* A handler: without one the kernel ends also who is frozen, or waits for a vfork, at once. */
static void save(int number)
{
	(void)number;
	_exit(0);
}

static void *go_on(void *unused)
{
	(void)unused;
	stand();
	return NULL;
}

/* Two hundred children, one after the other; all are deaf to SIGTERM. */
static void fork_on(int pause_us)
{
	for (int child = 0; child < 200; child++) {
		if (fork() == 0) {
			for (;;)
				pause();
		}
		usleep(pause_us);
	}
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "plain";
	pthread_t thread;

	if (argc > 2 && open(argv[2], O_RDONLY) < 0)
		return 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(kind, "deaf"))
		signal(SIGTERM, SIG_IGN);
	if (!strcmp(kind, "frozen") || !strcmp(kind, "uninterruptible"))
		signal(SIGTERM, save);
	if (!strcmp(kind, "uninterruptible")) {
		/* A parent in vfork(2) waits in state D: SIGTERM has to wait, SIGKILL has not. */
		if (vfork() == 0) {
			signal(SIGTERM, SIG_IGN);
			stand();
		}
	}
	if (!strcmp(kind, "family") && fork() == 0) {
		for (;;)
			pause();
	}
	if (!strcmp(kind, "headless")) {
		if (pthread_create(&thread, NULL, go_on, NULL))
			return 1;
		pthread_exit(NULL);
	}
	if (!strcmp(kind, "forking") && write(1, "x", 1) == 1) {
		signal(SIGTERM, SIG_IGN);
		setpgid(0, 0);
		fork_on(20000);
	}
	if (!strcmp(kind, "storm") && write(1, "x", 1) == 1) {
		signal(SIGTERM, SIG_IGN);
		setpgid(0, 0);
		fork_on(2000);
	}
	if (!strcmp(kind, "zombie")) {
		/* The child ends at once and is not reaped: its pid is printed by the parent of us. */
		if (fork() == 0)
			_exit(0);
	}
	if (!strcmp(kind, "traced")) {
		pid_t child = fork();

		if (child == 0) {
			ptrace(PTRACE_TRACEME, 0, 0, 0);
			raise(SIGSTOP);
			for (;;)
				pause();
		}
		waitpid(child, NULL, WUNTRACED);
	}
	stand();
	return 0;
}
