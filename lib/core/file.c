/* SPDX-License-Identifier: Apache-2.0 */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int gti_descriptor(int fd)
{
    enum { FIRST_OWN = 3 };
    if (fd < 0 || fd >= FIRST_OWN) {
        return fd;
    }
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OWN), error = errno;
    close(fd);
    errno = error;
    return moved;
}

int gti_open(const char *path, int flags, mode_t mode)
{
    return gti_descriptor(open(path, flags | O_CLOEXEC, mode));
}

FILE *gti_fopen(const char *path, const char *mode)
{
    int flags = mode[0] == 'r'   ? O_RDONLY
                : mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC
                                 : O_WRONLY | O_CREAT | O_APPEND;
    int fd = gti_open(path, flags, 0666);
    FILE *stream = fd >= 0 ? fdopen(fd, mode) : NULL;
    if (stream == NULL && fd >= 0) {
        int error = errno;
        close(fd);
        errno = error;
    }
    return stream;
}
