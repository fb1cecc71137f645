/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/mesh.h>

int64_t gt_split_first(int64_t n, int parts, int part)
{
    int64_t rest = n % parts;
    return n / parts * part + (part < rest ? part : rest);
}

int64_t gt_split_count(int64_t n, int parts, int part)
{
    return n / parts + (part < n % parts ? 1 : 0);
}
