// Division of tokens and channels, shared by both algorithms of the rank filter.

#pragma once

#include "permutation.h"

namespace rifflemix::permutation {

constexpr int64_t kShortWindow = 8;   // maximum tokens of a window that is sorted
constexpr int64_t kShortWidth = 256;  // channels in a block for short windows
constexpr int64_t kShortRows = 16;    // rows of 32-bit keys
constexpr int64_t kTokensOfStretch = 1024;

// Sizes and scratch memory of a filter.
template <class Bits>
struct Filtering {
  const Problem& p;
  bool sorts;         // sort windows: they are short and the processor sorts them fast
  int64_t width;      // channels in a block
  int64_t blocks;     // blocks of channels
  int64_t stretch;    // tokens in a stretch
  int64_t stretches;  // stretches of tokens
  int64_t bytes;      // bytes of a window
  Bits* wanted;       // (blocks, width): rank for each channel
  char* windows;      // (slots, bytes)

  Filtering(const Problem& problem, Arena& arena)
      : p(problem),
        sorts(p.group_size > least_sorted(p) && p.group_size <= kShortWindow && level() != 1),
        width(sorts ? kShortWidth : 8 * kLine<Bits>),
        blocks(quotient_up(p.channels, width)),
        stretch(std::max(kTokensOfStretch, 8 * p.group_size)),
        stretches(quotient_up(p.length, stretch)),
        bytes(width * (sorts ? kShortRows * static_cast<int64_t>(sizeof(int32_t))
                             : 3 * p.group_size * static_cast<int64_t>(sizeof(Bits)))),
        wanted(arena.take<Bits>(blocks * width)),
        windows(arena.take<char>(p.useful_threads() * bytes)) {}

  // Up to this window, correcting ranks is faster than sorting. The limit is higher for 16-bit
  // keys with distances, because these keys are twice as long.
  static int64_t least_sorted(const Problem& p) {
    return sizeof(Bits) == 2 && p.index_bytes > 0 ? 6 : 1;
  }

  void prepare() const {
    std::fill(wanted, wanted + blocks * width, Bits{0});
    for (int64_t c = 0; c < p.channels; ++c) wanted[c] = static_cast<Bits>(p.steps[c]);
  }
};

// A stretch of tokens in a block of channels of a sample. It contains a copy of the problem, so the
// compiler knows that stores do not change the problem.
template <class Bits>
struct Stretch {
  const Problem p;
  const Format<Bits> format;
  const int64_t b, first, last, channel, count;
  const Bits* const wanted;
  char* const window;

  Stretch(const Filtering<Bits>& f, int64_t task, int64_t of)
      : p(f.p),
        format(p.template format<Bits>()),
        b(task / f.blocks / f.stretches),
        first(task / f.blocks % f.stretches * f.stretch),
        last(std::min(p.length, first + f.stretch)),
        channel(task % f.blocks * f.width),
        count(std::min(f.width, p.channels - channel)),
        wanted(f.wanted + channel),
        window(f.windows + of * f.bytes) {}

  RIFFLEMIX_INLINE const Bits* x(int64_t n) const { return p.row<Bits>(b, n) + channel; }
  RIFFLEMIX_INLINE Bits* y(int64_t n) const { return static_cast<Bits*>(p.y) + place(n); }
  RIFFLEMIX_INLINE uint8_t* ago(int64_t n) const {
    return static_cast<uint8_t*>(p.index) + place(n);
  }
  RIFFLEMIX_INLINE int64_t place(int64_t n) const {
    return (b * p.length + n) * p.channels + channel;
  }
};

// Filters a stretch by sorting, for windows of 2 to kShortWindow tokens.
void filter_by_sorting(const Stretch<int32_t>& s);
void filter_by_sorting(const Stretch<int16_t>& s);

}  // namespace rifflemix::permutation
