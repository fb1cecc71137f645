/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of sharding: n elements over parts of equal, padded size, real elements first. */
#include <geektrain/zero.h>

int64_t gt_partition_size(int64_t n, int parts)
{
    if (n <= 0 || parts < 1) {
        return 0;
    }
    return n / parts + (n % parts != 0);
}

int64_t gt_partition_real(int64_t n, int parts, int part)
{
    int64_t size = gt_partition_size(n, parts);
    if (size == 0 || part < 0 || part >= parts || part > n / size) {
        return 0;
    }
    int64_t left = n - part * size;
    return left < size ? left : size;
}
