// Random number generator of kept.h.

#include "kept.h"

#include <cstring>

namespace rifflemix {
namespace {

constexpr int kLanes = 8;
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

RIFFLEMIX_INLINE Words rotate(Words x, int bits) { return (x << bits) | (x >> (32 - bits)); }

// One round more than the generator needs to pass every BigCrush test.
constexpr int kRounds = 13;
constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5},
                                  {6, 20},  {17, 11}, {25, 10}, {18, 20}};

// Generates the blocks of a tile, word by word: word k of block j is x[k][j].
RIFFLEMIX_INLINE void draw(const Drop& drop, uint64_t tile, uint32_t stream, Words x[4]) {
  const uint32_t key[5] = {drop.seed[0], drop.seed[1], 0, 0,
                           0x1BD11BDAu ^ drop.seed[0] ^ drop.seed[1]};
  const uint64_t first = tile * kLanes;  // a multiple of 8: adding a lane never carries
  x[0] = Words{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint32_t>(first) + key[0];
  x[1] = Words{} + static_cast<uint32_t>(first >> 32) + key[1];
  x[2] = Words{} + stream + key[2];
  x[3] = Words{} + key[3];
#pragma GCC unroll 13
  for (int round = 0; round < kRounds; ++round) {
    const int a = round % 2 == 0 ? 1 : 3, b = 4 - a;
    x[0] += x[a];
    x[a] = rotate(x[a], kRotations[round % 8][0]) ^ x[0];
    x[2] += x[b];
    x[b] = rotate(x[b], kRotations[round % 8][1]) ^ x[2];
    if (round % 4 != 3) continue;
    const uint32_t injection = (round + 1) / 4;
    for (int i = 0; i < 4; ++i) x[i] += key[(injection + i) % 5];
    x[3] += injection;
  }
}

// Writes the mask of some tiles: -1 for kept, 0 for dropped elements. The upper halves decide,
// except for one number in 65,536 with the upper half of the threshold. Its lower half comes from a
// second stream.
template <int kTiles>
RIFFLEMIX_INLINE void find_tiles(const Drop& drop, uint64_t tile, int16_t* keep) {
  Words words[4 * kTiles];
  uint16_t halves[kTiles * kTile];
  for (int i = 0; i < kTiles; ++i) draw(drop, tile + i, 0, words + 4 * i);
  std::memcpy(halves, words, sizeof(halves));
  const uint16_t upper = static_cast<uint16_t>(drop.threshold >> 16);
  int16_t equal = 0;
  for (int i = 0; i < kTiles * kTile; ++i) {
    keep[i] = static_cast<int16_t>(-(halves[i] > upper));
    equal |= static_cast<int16_t>(halves[i] == upper);
  }
  if (equal == 0) return;
  uint16_t lower[kTiles * kTile];
  for (int i = 0; i < kTiles; ++i) draw(drop, tile + i, 1, words + 4 * i);
  std::memcpy(lower, words, sizeof(lower));
  for (int i = 0; i < kTiles * kTile; ++i) {
    if (halves[i] == upper) keep[i] = -(lower[i] >= static_cast<uint16_t>(drop.threshold));
  }
}

}  // namespace

RIFFLEMIX_DISPATCH(void, find_many_tiles,
                   (const Drop& drop, uint64_t tile, uint64_t last, int16_t* keep),
                   (drop, tile, last, keep), {
  // Two tiles at a time, because the rounds of one tile depend on each other.
  for (; tile + 1 < last; tile += 2, keep += 2 * kTile) find_tiles<2>(drop, tile, keep);
  if (tile < last) find_tiles<1>(drop, tile, keep);
})

const int16_t* find_kept(const Drop& drop, int64_t first, int64_t count, int16_t* keep) {
  find_many_tiles(drop, first / kTile, (first + count + kTile - 1) / kTile, keep);
  return keep + first % kTile;
}

}  // namespace rifflemix
