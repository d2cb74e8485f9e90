// Group sort of pairs of tokens, forward and backward, without a shift: one pass over memory.

#include "pairs.h"

namespace rifflemix::permutation {

template <class Bits>
struct Pairs {
  const Problem& p;
  PairScratch<Bits> scratch;
};

// Prefetches the rows of pair i, as far as they do not evict rows in use.
template <class Bits>
RIFFLEMIX_INLINE void foresee_pair(const Problem& p, int64_t i) {
  const int64_t b = i / (p.length / 2), n = 2 * (i % (p.length / 2));
  const int64_t lines = std::min<int64_t>(quotient_up(p.channels, kLine<Bits>), 64);
  foresee(p.row<Bits>(b, n), kLineBytes, lines);
  foresee(p.row<Bits>(b, n + 1), kLineBytes, lines);
}

// Exchanges pairs first..last-1, counted over all samples.
template <Swaps kSwaps, class Bits>
RIFFLEMIX_INLINE void exchange_pairs(const Pairs<Bits>& pairs, int64_t first, int64_t last,
                                     int64_t slot) {
  const Problem& p = pairs.p;
  const Format<Bits> format = p.format<Bits>();
  for (int64_t i = first; i < last; ++i) {
    const int64_t b = i / (p.length / 2), k = i % (p.length / 2);
    Bits* y = static_cast<Bits*>(p.y) + 2 * i * p.channels;
    if (i + 1 < last) foresee_pair<Bits>(p, i + 1);
    const Pair<Bits> pair{p.row<Bits>(b, 2 * k), p.row<Bits>(b, 2 * k + 1), y, y + p.channels};
    exchange_channels<kSwaps>(p, pairs.scratch, b, k, 0, p.channels, pair, slot,
                              [&](int64_t head) __attribute__((always_inline)) {
      const int64_t leader = head * (p.channels / p.heads);
      return out_of_order(pair.first[leader], pair.second[leader], format);
    });
  }
}

#define RIFFLEMIX_PAIRS(Bits)                                                              \
  RIFFLEMIX_DISPATCH(void, decide_pairs,                                                   \
                     (const Pairs<Bits>& pairs, int64_t first, int64_t last, int64_t slot), \
                     (pairs, first, last, slot), {                                         \
    exchange_pairs<Swaps::kDecided>(pairs, first, last, slot);                             \
  })                                                                                       \
  RIFFLEMIX_DISPATCH(void, repeat_pairs,                                                   \
                     (const Pairs<Bits>& pairs, int64_t first, int64_t last, int64_t slot), \
                     (pairs, first, last, slot), {                                         \
    exchange_pairs<Swaps::kRepeated>(pairs, first, last, slot);                            \
  })
RIFFLEMIX_PAIRS(int32_t)
RIFFLEMIX_PAIRS(int16_t)

template <Swaps kSwaps, class Bits>
int64_t all_pairs(const Problem& p) {
  Arena arena(p.scratch);
  const Pairs<Bits> pairs{p, PairScratch<Bits>(p, arena)};
  if (p.scratch == nullptr) return arena.used();
  pairs.scratch.prepare(p);
  share(p, p.batch * (p.length / 2), [&](int64_t first, int64_t last, int64_t slot) {
    kSwaps == Swaps::kDecided ? decide_pairs(pairs, first, last, slot)
                              : repeat_pairs(pairs, first, last, slot);
  });
  return 0;
}

}  // namespace rifflemix::permutation

using rifflemix::permutation::Problem;
using rifflemix::permutation::Swaps;

RIFFLEMIX_EXPORT int64_t rifflemix_sort_pairs(const Problem* p) {
  using namespace rifflemix::permutation;
  return rifflemix::guarded([&] {
    return p->element_bytes == 4 ? all_pairs<Swaps::kDecided, int32_t>(*p)
                                 : all_pairs<Swaps::kDecided, int16_t>(*p);
  });
}

RIFFLEMIX_EXPORT int64_t rifflemix_exchange_pairs(const Problem* p) {
  using namespace rifflemix::permutation;
  return rifflemix::guarded([&] {
    return p->element_bytes == 4 ? all_pairs<Swaps::kRepeated, int32_t>(*p)
                                 : all_pairs<Swaps::kRepeated, int16_t>(*p);
  });
}
