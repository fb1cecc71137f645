/* SPDX-License-Identifier: Apache-2.0
 * Opening files in a process whose descriptors 0, 1 or 2 are closed. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/file.h"
#include "files.h"

/* Runs `body` in a child whose descriptors of `closed` (a bit each) are closed. */
static int in_child(unsigned closed, int (*body)(void))
{
    pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd < 3; fd++) {
            if (closed >> fd & 1) {
                close(fd);
            }
        }
        _exit(body());
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int count_low(void)
{
    int low = 0;
    for (int fd = 0; fd < 3; fd++) {
        low += fcntl(fd, F_GETFD) != -1;
    }
    return low;
}

static bool is_own(int fd)
{
    return fd > 2 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

static int opens_files(void)
{
    int before = count_low(), made[4];
    made[0] = gti_open(files_path("a"), O_WRONLY | O_CREAT, 0600);
    made[1] = gti_open(files_path("a"), O_RDONLY, 0);
    made[2] = gti_descriptor(memfd_create("x", MFD_CLOEXEC));
    FILE *w = gti_fopen(files_path("b"), "w");
    if (w == NULL || fputs("one\n", w) < 0 || !is_own(fileno(w)) || fclose(w) != 0) {
        return 2;
    }
    FILE *a = gti_fopen(files_path("b"), "a");
    if (a == NULL || fputs("two\n", a) < 0 || !is_own(fileno(a)) || fclose(a) != 0) {
        return 3;
    }
    FILE *r = gti_fopen(files_path("b"), "r");
    char text[16] = {0};
    if (r == NULL || !is_own(fileno(r)) || fread(text, 1, 15, r) != 8 ||
        strcmp(text, "one\ntwo\n") != 0) {
        return 4;
    }
    made[3] = fileno(r);
    for (int i = 0; i < 4; i++) {
        if (!is_own(made[i])) {
            return 10 + i;
        }
    }
    return count_low() == before ? 0 : 5;
}

static void descriptors_that_print_are_left_alone(void **state)
{
    for (unsigned closed = 0; closed < 8; closed++) {
        assert_int_equal(in_child(closed, opens_files), 0);
    }
}

static int fails_as_open_does(void)
{
    errno = 0;
    if (gti_open(files_path("none"), O_RDONLY, 0) != -1 || errno != ENOENT) {
        return 1;
    }
    errno = 0;
    return gti_fopen("/proc/none", "w") == NULL && errno == ENOENT ? 0 : 2;
}

static void failures_keep_errno(void **state)
{
    assert_int_equal(in_child(0, fails_as_open_does), 0);
    assert_int_equal(in_child(7, fails_as_open_does), 0);
    errno = EMFILE;
    assert_int_equal(gti_descriptor(-1), -1);
    assert_int_equal(errno, EMFILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_that_print_are_left_alone),
        cmocka_unit_test(failures_keep_errno),
    };
    return cmocka_run_group_tests(tests, files_open, files_close);
}
