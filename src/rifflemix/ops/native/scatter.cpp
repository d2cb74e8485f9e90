// Backward pass of a gather with an index that permutes the tokens of every channel.
//
// The index is not trusted: a position outside its group is an error, and nothing is written there.

#include "permutation.h"

namespace rifflemix::permutation {

constexpr int64_t kAhead = 16;  // rows to prefetch

// Scratch tiles: a tile is one group if tokens move only within groups, else the whole sample.
template <class Bits>
struct Scattering {
  const Problem& p;
  Bits* tiles;  // (slots, group_size, line)

  Scattering(const Problem& problem, Arena& arena)
      : p(problem), tiles(arena.take<Bits>(p.useful_threads() * p.group_size * kLine<Bits>)) {}
};

// Scatters one group of one cache line of channels. The lines are first collected in a contiguous
// tile, because lines at distances of whole tokens would share cache sets. Returns false at a
// position outside the group.
template <class Index, class Bits>
bool scatter_tile(const Scattering<Bits>& s, int64_t row, int64_t channel, Bits* tile,
                  const Bits* grad, const uint8_t* mask, int64_t start) {
  const Problem& p = s.p;
  constexpr int64_t line = kLine<Bits>;
  const int64_t count = std::min<int64_t>(line, p.channels - channel);
  const Index* index = static_cast<const Index*>(p.index) + row * p.channels + channel;
  for (int64_t n = 0; n < p.group_size; ++n) {
    if (n + kAhead < p.group_size) {
      __builtin_prefetch(grad + kAhead * p.row_stride);
      __builtin_prefetch(index + kAhead * p.channels);
    }
    const bool padded = mask != nullptr && mask[n] != 0;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t position = static_cast<int64_t>(index[j]) - start;
      if (static_cast<uint64_t>(position) >= static_cast<uint64_t>(p.group_size)) return false;
      tile[position * line + j] = padded ? Bits{0} : grad[j];
    }
    grad += p.row_stride;
    index += p.channels;
  }
  Bits* out = static_cast<Bits*>(p.y) + row * p.channels + channel;
  for (int64_t n = 0; n < p.group_size; ++n, out += p.channels) {
    if (n + kAhead < p.group_size) __builtin_prefetch(out + kAhead * p.channels);
    std::copy(tile + n * line, tile + n * line + count, out);
  }
  return true;
}

template <class Index, class Bits>
int64_t scatter(const Problem& p) {
  Arena arena(p.scratch);
  const Scattering<Bits> s(p, arena);
  if (p.scratch == nullptr) return arena.used();
  const int64_t lines = quotient_up(p.channels, kLine<Bits>);
  const int64_t groups = p.length / p.group_size;
  std::atomic<bool> inside{true};
  share(p, p.batch * groups * lines, [&](int64_t first, int64_t last, int64_t slot) {
    Bits* tile = s.tiles + slot * p.group_size * kLine<Bits>;
    for (int64_t task = first; task < last; ++task) {
      const int64_t channel = task % lines * kLine<Bits>;
      const int64_t b = task / lines / groups, start = task / lines % groups * p.group_size;
      const int64_t row = b * p.length + start;
      const bool whole =
          scatter_tile<Index>(s, row, channel, tile, p.row<Bits>(b, start) + channel,
                              p.mask == nullptr ? nullptr : p.mask + row, start);
      if (!whole) inside = false;
    }
  });
  return inside ? 0 : kBadIndex;
}

template <class Bits>
int64_t scatter(const Problem& p) {
  switch (p.index_bytes) {
    case 2: return scatter<uint16_t, Bits>(p);
    case 4: return scatter<int32_t, Bits>(p);
    default: return scatter<int64_t, Bits>(p);
  }
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_scatter(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::scatter;
  return rifflemix::guarded(
      [&] { return p->element_bytes == 4 ? scatter<int32_t>(*p) : scatter<int16_t>(*p); });
}
