// Position of each channel's largest value: the first of equal values; NaN is the largest.

#include "permutation.h"

namespace rifflemix::permutation {

// Processes one cache line of channels of one sample; p.index is (batch, channels) int64.
template <class Bits>
RIFFLEMIX_INLINE void find_largest(const Problem& p, int64_t b, int64_t channel) {
  constexpr int lanes = kVectorBytes / sizeof(Bits);
  using Lanes = Vector<Bits, lanes>;
  using Positions = Vector<int32_t, lanes>;
  const int64_t count = std::min<int64_t>(lanes, p.channels - channel);
  const Format<Bits> format = p.format<Bits>();
  Lanes best = Lanes{} + std::numeric_limits<Bits>::min();
  Positions position = {};
  Bits some[lanes] = {};
  for (int64_t n = 0; n < p.length; ++n) {
    if (p.padded(b, n)) continue;
    const Bits* row = p.row<Bits>(b, n) + channel;
    if (count < lanes) {
      std::copy(row, row + count, some);
      row = some;
    }
    const Lanes key = ordered(load<Lanes>(row), format);
    const Lanes larger = key > best;
    best = larger ? key : best;
    const Positions now = Positions{} + static_cast<int32_t>(n);
    position = __builtin_convertvector(larger, Positions) ? now : position;
  }
  for (int64_t j = 0; j < count; ++j) {
    static_cast<int64_t*>(p.index)[b * p.channels + channel + j] = position[j];
  }
}

#define RIFFLEMIX_LARGEST(Bits)                                                                   \
  RIFFLEMIX_DISPATCH(void, find_largest_of, (const Problem& p, Bits bits, int64_t b, int64_t c),  \
                     (p, bits, b, c), { (void)bits, find_largest<Bits>(p, b, c); })
RIFFLEMIX_LARGEST(int32_t)
RIFFLEMIX_LARGEST(int16_t)

template <class Bits>
void first_largest(const Problem& p) {
  constexpr int64_t lanes = kVectorBytes / sizeof(Bits);
  const int64_t vectors = quotient_up(p.channels, lanes);
  share(p, p.batch * vectors, [&](int64_t first, int64_t last, int64_t) {
    for (int64_t task = first; task < last; ++task) {
      find_largest_of(p, Bits{}, task / vectors, task % vectors * lanes);
    }
  });
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_first_largest(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::first_largest;
  if (p->scratch == nullptr) return 0;
  return rifflemix::guarded([&]() -> int64_t {
    p->element_bytes == 4 ? first_largest<int32_t>(*p) : first_largest<int16_t>(*p);
    return 0;
  });
}
