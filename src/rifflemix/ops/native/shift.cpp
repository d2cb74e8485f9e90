// Circular shift of every channel, alone or combined with the group sort of pairs.
//
// A tile is one cache line of channels of one sample. Its valid tokens are transposed, so that each
// channel is contiguous and a shift is an offset. Then they are read back as rows. Memory is
// therefore accessed in whole cache lines, for any shifts of the channels.

#include "pairs.h"
#include "transpose.h"

namespace rifflemix::permutation {

constexpr int64_t kRows = 32;  // rows read back at a time

enum class Around { kNothing, kSortAfter, kExchangeBefore };

template <class Bits>
struct Shifting {
  static constexpr int64_t line = kLine<Bits>;

  const Problem& p;
  Shift shift;
  PairScratch<Bits> pairs;
  Bits* opposite;  // (batch, heads, length / 2): all ones if the shifted reference is out of order
  int64_t height;  // size of a tile's channel: the tokens, the first kRows again, and padding
  Bits* channels;  // (slots, line, height)
  Bits* rows;      // (slots, kRows, line)

  Shifting(const Problem& problem, Arena& arena)
      : p(problem),
        shift(p, arena),
        pairs(p, arena),
        opposite(arena.take<Bits>(p.batch * p.heads * (p.length / 2))),
        height((quotient_up(p.length + 2 * kRows, line) | 1) * line),
        channels(arena.take<Bits>(p.useful_threads() * line * height)),
        rows(arena.take<Bits>(p.useful_threads() * kRows * line)) {}

  RIFFLEMIX_INLINE Bits* turned(int64_t b, int64_t head) const {
    return opposite + (b * p.heads + head) * (p.length / 2);
  }
};

// One cache line of channels of one sample, and the memory of a slot.
template <class Bits>
struct Tile {
  int64_t b, channel, count, slot;
  Bits *channels, *rows;

  RIFFLEMIX_INLINE Tile(const Shifting<Bits>& s, int64_t task, int64_t slot_)
      : b(task / quotient_up(s.p.channels, s.line)),
        channel(task % quotient_up(s.p.channels, s.line) * s.line),
        count(std::min(s.line, s.p.channels - channel)),
        slot(slot_),
        channels(s.channels + slot * s.line * s.height),
        rows(s.rows + slot * kRows * s.line) {}
};

template <class Bits>
RIFFLEMIX_INLINE void copy_line(const Bits* from, Bits* to, int64_t count) {
  if (count == kLine<Bits>) {
    std::memmove(to, from, kLineBytes);
  } else {
    std::copy(from, from + count, to);
  }
}

// Gathers the tile's rows of valid tokens, copied from x, or in place if x is null. Returns the
// number of rows.
template <class Bits>
RIFFLEMIX_INLINE int64_t gather_valid(const Shifting<Bits>& s, const Tile<Bits>& tile, int64_t n,
                                      int64_t count, const Bits* x) {
  int64_t valid = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (s.p.padded(tile.b, n + i)) continue;
    const Bits* from = x == nullptr ? tile.rows + i * s.line : x + i * s.p.row_stride;
    copy_line(from, tile.rows + valid++ * s.line, tile.count);
  }
  return valid;
}

// Inverse of `gather_valid`: moves the first rows to the valid positions, and zeros the others.
template <class Bits>
RIFFLEMIX_INLINE void spread_valid(const Shifting<Bits>& s, const Tile<Bits>& tile, int64_t n,
                                   int64_t count, int64_t valid) {
  for (int64_t i = count - 1; i >= 0; --i) {
    Bits* row = tile.rows + i * s.line;
    if (s.p.padded(tile.b, n + i)) {
      std::fill(row, row + s.line, Bits{0});
    } else if (--valid != i) {
      std::memcpy(row, tile.rows + valid * s.line, kLineBytes);
    }
  }
}

// Transposes the tile's rows; the first row has this rank. Rows after the valid rows are transposed
// too, and overwritten by the next rows.
template <class Bits>
RIFFLEMIX_INLINE void lay_out(const Shifting<Bits>& s, const Tile<Bits>& tile, int64_t rank) {
  constexpr int square = kVectorBytes / sizeof(Bits);
  for (int64_t j = 0; j < tile.count; j += square) {
    for (int64_t i = 0; i < kRows; i += square) {
      const Bits* from = tile.rows + i * s.line + j;
      transpose([&](int k) __attribute__((always_inline)) { return from + k * s.line; },
                tile.channels + j * s.height + rank + i, s.height);
    }
  }
}

// Repeats the first tokens after the last, so that a run of tokens may wrap around.
template <class Bits>
RIFFLEMIX_INLINE void close_circle(const Shifting<Bits>& s, const Tile<Bits>& tile) {
  const int64_t valid = s.shift.valid[tile.b];
  for (int64_t j = 0; j < tile.count; ++j) {
    Bits* channel = tile.channels + j * s.height;
    for (int64_t i = 0; i < kRows; ++i) channel[valid + i] = channel[i];
  }
}

// Fills the tile's rows with valid tokens; their ranks before the shift start at `rank`.
template <class Bits>
RIFFLEMIX_INLINE void read_back(const Shifting<Bits>& s, const Tile<Bits>& tile, int32_t rank) {
  constexpr int square = kVectorBytes / sizeof(Bits);
  const int32_t* step = s.shift.step + tile.b * s.p.channels + tile.channel;
  const int32_t valid = s.shift.valid[tile.b];
  for (int64_t j = 0; j < tile.count; j += square) {
    const Bits* starts[square];
    for (int64_t k = 0; k < square; ++k) {
      const int32_t back = rank - (j + k < tile.count ? step[j + k] : 0);
      starts[k] = tile.channels + (j + k) * s.height + (back < 0 ? back + valid : back);
    }
    for (int64_t i = 0; i < kRows; i += square) {
      transpose([&](int k) __attribute__((always_inline)) { return starts[k] + i; },
                tile.rows + i * s.line + j, s.line);
    }
  }
}

// Not inlined: they have several callers, and transposing is a lot of code.
#define RIFFLEMIX_TRANSPOSING(Bits)                                                              \
  RIFFLEMIX_DISPATCH(void, lay_out_of,                                                           \
                     (const Shifting<Bits>& s, const Tile<Bits>& tile, int64_t rank),            \
                     (s, tile, rank), { lay_out(s, tile, rank); })                               \
  RIFFLEMIX_DISPATCH(void, read_back_of,                                                         \
                     (const Shifting<Bits>& s, const Tile<Bits>& tile, int32_t rank),            \
                     (s, tile, rank), { read_back(s, tile, rank); })
RIFFLEMIX_TRANSPOSING(int32_t)
RIFFLEMIX_TRANSPOSING(int16_t)

// Exchanges the pairs of tokens n..n+count-1. Reads rows from `from` on, writes rows from `to` on.
template <Swaps kSwaps, class Bits>
RIFFLEMIX_INLINE void exchange_rows(const Shifting<Bits>& s, const Tile<Bits>& tile, int64_t n,
                                    int64_t count, const Bits* from, int64_t stride, Bits* to,
                                    int64_t stride_out) {
  for (int64_t k = n / 2; k < (n + count) / 2; ++k) {
    const Pair<Bits> pair{from, from + stride, to, to + stride_out};
    exchange_channels<kSwaps>(s.p, s.pairs, tile.b, k, tile.channel, tile.count, pair, tile.slot,
                              [&](int64_t head) __attribute__((always_inline)) {
      return s.turned(tile.b, head)[k];
    });
    from += 2 * stride;
    to += 2 * stride_out;
  }
}

// Transposes all valid tokens of the tile.
template <Around kAround, class Bits>
RIFFLEMIX_INLINE void take_tokens(const Shifting<Bits>& s, const Tile<Bits>& tile) {
  const Problem& p = s.p;
  int64_t rank = 0;
  for (int64_t n = 0; n < p.length; n += kRows) {
    const int64_t count = std::min(kRows, p.length - n);
    const Bits* x = p.row<Bits>(tile.b, n) + tile.channel;
    foresee(x + kRows * p.row_stride, p.row_stride * sizeof(Bits),
            std::min(kRows, p.length - n - kRows));
    if constexpr (kAround == Around::kExchangeBefore) {
      exchange_rows<Swaps::kRepeated>(s, tile, n, count, x, p.row_stride, tile.rows, s.line);
      x = nullptr;
    }
    const int64_t valid = gather_valid(s, tile, n, count, x);
    lay_out_of(s, tile, rank);
    rank += valid;
  }
}

template <Around kAround, class Bits>
RIFFLEMIX_INLINE void shift_tile(const Shifting<Bits>& s, const Tile<Bits>& tile) {
  const Problem& p = s.p;
  take_tokens<kAround>(s, tile);
  close_circle(s, tile);
  int64_t rank = 0;
  for (int64_t n = 0; n < p.length; n += kRows) {
    const int64_t count = std::min(kRows, p.length - n);
    int64_t valid = 0;
    for (int64_t i = 0; i < count; ++i) valid += !p.padded(tile.b, n + i);
    Bits* y = static_cast<Bits*>(p.y) + (tile.b * p.length + n) * p.channels + tile.channel;
    foresee(y + kRows * p.channels, p.channels * sizeof(Bits),
            std::min(kRows, p.length - n - kRows));
    if (valid > 0) read_back_of(s, tile, static_cast<int32_t>(rank));
    spread_valid(s, tile, n, count, valid);
    rank += valid;
    if constexpr (kAround == Around::kSortAfter) {
      exchange_rows<Swaps::kDecided>(s, tile, n, count, tile.rows, s.line, y, p.channels);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        copy_line(tile.rows + i * s.line, y + i * p.channels, tile.count);
      }
    }
  }
}

// Computes for each head if the shifted reference pairs are out of order.
template <class Bits>
void compare_leaders(const Shifting<Bits>& s, int64_t first, int64_t last) {
  const Problem& p = s.p;
  const Format<Bits> format = p.format<Bits>();
  for (int64_t i = first; i < last; ++i) {
    const int64_t b = i / p.heads, head = i % p.heads, leader = head * (p.channels / p.heads);
    for (int64_t n = 0; n + 1 < p.length; n += 2) {
      if (p.padded(b, n) || p.padded(b, n + 1)) continue;
      s.turned(b, head)[n / 2] =
          out_of_order(p.row<Bits>(b, s.shift.source(p, b, n, leader))[leader],
                       p.row<Bits>(b, s.shift.source(p, b, n + 1, leader))[leader], format);
    }
  }
}

#define RIFFLEMIX_SHIFT(Bits)                                                                \
  RIFFLEMIX_DISPATCH(void, shift_tile_of,                                                    \
                     (const Shifting<Bits>& s, const Tile<Bits>& tile, Around around),       \
                     (s, tile, around), {                                                    \
    switch (around) {                                                                        \
      case Around::kNothing: return shift_tile<Around::kNothing>(s, tile);                   \
      case Around::kSortAfter: return shift_tile<Around::kSortAfter>(s, tile);               \
      case Around::kExchangeBefore: return shift_tile<Around::kExchangeBefore>(s, tile);     \
    }                                                                                        \
  })
RIFFLEMIX_SHIFT(int32_t)
RIFFLEMIX_SHIFT(int16_t)

template <class Bits>
int64_t shift(const Problem& p, Around around) {
  Arena arena(p.scratch);
  const Shifting<Bits> s(p, arena);
  if (p.scratch == nullptr) return arena.used();
  s.shift.prepare(p);
  s.pairs.prepare(p);
  share(p, p.batch * p.heads,
        [&](int64_t first, int64_t last, int64_t) { compare_leaders(s, first, last); });
  share(p, p.batch * quotient_up(p.channels, s.line),
        [&](int64_t first, int64_t last, int64_t slot) {
    for (int64_t task = first; task < last; ++task) {
      shift_tile_of(s, Tile<Bits>(s, task, slot), around);
    }
  });
  return 0;
}

int64_t shift(const Problem& p, Around around) {
  return guarded([&] {
    return p.element_bytes == 4 ? shift<int32_t>(p, around) : shift<int16_t>(p, around);
  });
}

}  // namespace rifflemix::permutation

using rifflemix::permutation::Around;
using rifflemix::permutation::Problem;

RIFFLEMIX_EXPORT int64_t rifflemix_shift(const Problem* p) {
  return rifflemix::permutation::shift(*p, Around::kNothing);
}

RIFFLEMIX_EXPORT int64_t rifflemix_shift_sort_pairs(const Problem* p) {
  return rifflemix::permutation::shift(*p, Around::kSortAfter);
}

RIFFLEMIX_EXPORT int64_t rifflemix_exchange_pairs_shift(const Problem* p) {
  return rifflemix::permutation::shift(*p, Around::kExchangeBefore);
}
