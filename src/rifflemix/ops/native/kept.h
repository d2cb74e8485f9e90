// Which elements dropout keeps: a function of a seed and of the element's index alone, so that
// nothing has to be stored and any number of threads finds the same.
//
// Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3": Threefry-4x32.

#pragma once

#include "kernels.h"

namespace rifflemix {

// An element is dropped where its number, 32 random bits, is below `threshold`.
struct Drop {
  uint32_t seed[2];
  uint32_t threshold;
};

// Elements whose numbers are drawn together: the upper halves of 8 blocks of 4 words.
constexpr int64_t kTile = 64;

// Which elements first ... first + count - 1 are kept: -1 for each that is, 0 for each dropped one.
// `keep` holds room for two more tiles; the result is where the first one stands in it.
const int16_t* find_kept(const Drop& drop, int64_t first, int64_t count, int16_t* keep);

}  // namespace rifflemix
