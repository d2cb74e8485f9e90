// The elements that dropout keeps depend only on a seed and on the element's index. No mask has to
// be stored, and the result does not depend on the number of threads.
//
// Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3": Threefry-4x32.

#pragma once

#include "kernels.h"

namespace rifflemix {

// An element is dropped if its number, 32 random bits, is below `threshold`.
struct Drop {
  uint32_t seed[2];
  uint32_t threshold;
};

// Number of elements generated together: the upper halves of 8 blocks of 4 words.
constexpr int64_t kTile = 64;

// Generates the mask of elements first ... first + count - 1: -1 for kept, 0 for dropped elements.
// `keep` needs space for two more tiles; the result points to the first element in `keep`.
const int16_t* find_kept(const Drop& drop, int64_t first, int64_t count, int16_t* keep);

}  // namespace rifflemix
