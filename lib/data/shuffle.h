/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GTI_DATA_SHUFFLE_H
#define GTI_DATA_SHUFFLE_H

#include <stdint.h>

/* The i-th element of the permutation of 0..n-1 that (seed, epoch) stands for; i < n. Needs no
 * memory: a Feistel network of Philox rounds over the next even power of two, walked until it falls
 * below n. */
int64_t gti_shuffle(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

#endif
