// Stable sort of groups of tokens, separately in every channel, with the indices.
//
// A tile is one group of one cache line of channels. Its values are converted to keys of value and
// index. A sorting network sorts the keys, and rows of keys are read back in the required order:
// out[n] = sorted[rank[n]]. `rank` is the position's rank in the reference channel or, with
// padding, among valid tokens.
//
// If x is shifted before the sort, the index refers to positions before the shift.

#include "network.h"
#include "permutation.h"

namespace rifflemix::permutation {

template <class Key>
using Keys = Vector<Key, kLanes<Key>>;

RIFFLEMIX_DISPATCH(void, sort_keys, (Keys<int32_t>* rows, int64_t size, int64_t limit),
                   (rows, size, limit), { sort_rows(rows, size, limit); })
RIFFLEMIX_DISPATCH(void, sort_keys, (Keys<int64_t>* rows, int64_t size, int64_t limit),
                   (rows, size, limit), { sort_rows(rows, size, limit); })

constexpr int64_t kChunk = 16;  // rows processed together, a divisor of kBlock
constexpr int64_t kRowsPerTask = 256;

// Sizes and scratch memory of a sort.
template <class Bits, class Key>
struct Sorting {
  static constexpr int64_t line = kLine<Bits>;
  static constexpr int64_t lanes = kLanes<Key>;

  const Problem& p;
  int64_t rows = 1;      // rows of a tile: group_size rounded up to a power of two
  int64_t groups;        // groups per task
  int64_t blocks;        // blocks of `groups` groups in a sample
  int64_t num_rankings;  // rankings per sample
  Shift shift;
  int32_t* ranks;        // (batch, num_rankings, length): ranks within the group
  Keys<Key>* tiles;      // (slots, line / lanes, tile_rows(rows))
  Bits* staged;          // (slots, kChunk, line)

  Sorting(const Problem& problem, Arena& arena)
      : p(problem),
        groups(std::max<int64_t>(1, kRowsPerTask / p.group_size)),
        blocks(quotient_up(p.length / p.group_size, groups)),
        num_rankings(p.heads > 0 ? p.heads : p.mask != nullptr ? 1 : 0),
        shift(p, arena) {
    while (rows < p.group_size) rows *= 2;
    ranks = arena.take<int32_t>(p.batch * num_rankings * p.length);
    tiles = arena.take<Keys<Key>>(p.useful_threads() * (line / lanes) * height());
    staged = arena.take<Bits>(p.useful_threads() * kChunk * line);
  }

  RIFFLEMIX_INLINE int64_t height() const { return tile_rows(rows); }
  RIFFLEMIX_INLINE int32_t* ranking(int64_t b, int64_t which) const {
    return ranks + (b * num_rankings + which) * p.length;
  }
};

// The channels of a tile: `count` of them, `spacing` apart.
template <class Bits>
struct Columns {
  int64_t first, count, spacing;
  Bits flip[kLine<Bits>] = {};

  RIFFLEMIX_INLINE Columns(const Problem& p, int64_t tile, int64_t available, int64_t spacing_)
      : first(tile * kLine<Bits> * spacing_),
        count(std::min<int64_t>(kLine<Bits>, available - tile * kLine<Bits>)),
        spacing(spacing_) {
    for (int64_t j = 0; j < count && p.descending != nullptr; ++j) {
      flip[j] = p.descending[channel(j)] ? kSign<Bits> : Bits{0};
    }
  }
  RIFFLEMIX_INLINE int64_t channel(int64_t j) const { return first + j * spacing; }
  RIFFLEMIX_INLINE bool whole() const { return count == kLine<Bits> && spacing == 1; }
};

// Copies tokens n..n+count-1 of a tile's channels to the staging rows.
template <class Bits, class Key>
RIFFLEMIX_INLINE void stage(const Sorting<Bits, Key>& s, const Columns<Bits>& columns, int64_t b,
                            int64_t n, int64_t count, Bits* staged) {
  const Problem& p = s.p;
  for (int64_t j = 0; j < columns.count; ++j) {
    for (int64_t i = 0; i < count; ++i) {
      staged[i * s.line + j] = p.row<Bits>(b, n + i)[columns.channel(j)];
    }
  }
}

// Sorts a group of a tile's channels; returns its keys, (vectors of channels, rows).
template <class Bits, class Key>
RIFFLEMIX_INLINE const Keys<Key>* sort_tile(const Sorting<Bits, Key>& s,
                                            const Columns<Bits>& columns, int64_t b, int64_t start,
                                            int64_t slot) {
  const Problem& p = s.p;
  const Format<Bits> format = p.format<Bits>();
  const int64_t height = s.height(), size = p.group_size;
  Keys<Key>* tile = s.tiles + slot * (s.line / s.lanes) * height;
  Keys<Key>* tile_end = tile + quotient_up(columns.count, s.lanes) * height;
  for (int64_t at = 0; at < size; at += kChunk) {
    const int64_t count = std::min(kChunk, size - at);
    const Bits* values = s.staged + slot * kChunk * s.line;
    int64_t stride = s.line;
    if (columns.whole()) {
      values = p.row<Bits>(b, start + at) + columns.first;
      stride = p.row_stride;
      foresee(values + kChunk * stride, stride * sizeof(Bits), std::min(size - at - count, kChunk));
    } else {
      stage(s, columns, b, start + at, count, const_cast<Bits*>(values));
    }
    const Bits* flip = columns.flip;
    for (Keys<Key>* rows = tile + tile_row(at); rows < tile_end; rows += height) {
      make_keys<Key>(values, stride, count, flip, static_cast<Key>(at), format, rows);
      for (int64_t i = 0; i < count && p.mask != nullptr; ++i) {
        const Key index = static_cast<Key>(at + i);
        if (p.padded(b, start + index)) rows[i] = padding_keys<Key, Bits>(index);
      }
      values += s.lanes;
      flip += s.lanes;
    }
  }
  for (Keys<Key>* rows = tile; rows < tile_end; rows += height) {
    for (int64_t i = size; i < s.rows; ++i) rows[tile_row(i)] = Keys<Key>{} + kTop<Key>;
    sort_keys(rows, s.rows, size);
  }
  return tile;
}

// A run of a tile's lanes that share a ranking (null: no ranking, sorted order).
struct Run {
  int64_t low, high;
  const int32_t* ranking;
};

// Up to kChunk positions from n on, and lanes first..last-1 of a vector of channels.
template <class Bits, class Key>
struct Piece {
  int64_t b, n, count, start;  // start: first token of the group
  int64_t channel;             // channel of lane 0
  int64_t first, last;
};

template <class Index, class Bits, class Key>
RIFFLEMIX_INLINE void write_indices(const Sorting<Bits, Key>& s, const Piece<Bits, Key>& piece,
                                    const int32_t* positions) {
  const int64_t channels = s.p.channels;
  Index* index = static_cast<Index*>(s.p.index);
  index += (piece.b * s.p.length + piece.n) * channels + piece.channel;
  if (piece.last - piece.first == s.lanes) {
    for (int64_t i = 0; i < piece.count; ++i) {
      for (int64_t j = 0; j < s.lanes; ++j) {
        index[i * channels + j] = static_cast<Index>(positions[i * s.lanes + j]);
      }
    }
    return;
  }
  for (int64_t i = 0; i < piece.count; ++i) {
    for (int64_t j = piece.first; j < piece.last; ++j) {
      index[i * channels + j] = static_cast<Index>(positions[i * s.lanes + j]);
    }
  }
}

// Converts indices within the group to positions and writes them; `within` is overwritten.
template <class Bits, class Key>
RIFFLEMIX_INLINE void write_positions(const Sorting<Bits, Key>& s, const Piece<Bits, Key>& piece,
                                   int32_t* within) {
  const Problem& p = s.p;
  for (int64_t i = 0; i < kChunk * s.lanes; ++i) within[i] += static_cast<int32_t>(piece.start);
  for (int64_t i = 0; i < piece.count && (p.steps != nullptr || p.mask != nullptr); ++i) {
    const bool padded = p.padded(piece.b, piece.n + i);
    for (int64_t j = piece.first; j < piece.last; ++j) {
      int32_t& position = within[i * s.lanes + j];
      if (padded) {
        position = static_cast<int32_t>(piece.n + i);
      } else if (p.steps != nullptr) {
        position = static_cast<int32_t>(s.shift.source(p, piece.b, position, piece.channel + j));
      }
    }
  }
  switch (p.index_bytes) {
    case 2: return write_indices<uint16_t>(s, piece, within);
    case 4: return write_indices<int32_t>(s, piece, within);
    default: return write_indices<int64_t>(s, piece, within);
  }
}

// Writes one piece; rows[i] is the sorted vector for position n + i.
template <class Bits, class Key>
RIFFLEMIX_INLINE void write_piece(const Sorting<Bits, Key>& s, const Piece<Bits, Key>& piece,
                                  const Keys<Key>* const* rows, int64_t offset, const Bits* flip) {
  const Problem& p = s.p;
  Bits some[kChunk * kLanes<Key>];
  int32_t within[kChunk * kLanes<Key>] = {};
  Bits* y = static_cast<Bits*>(p.y) + (piece.b * p.length + piece.n) * p.channels + piece.channel;
  const int64_t channels = p.channels;
  const bool whole = piece.last - piece.first == s.lanes;
  Bits* values = whole ? y : some;
  const int64_t stride = whole ? channels : s.lanes;
  read_keys<Key>(rows, offset, piece.count, flip, p.format<Bits>(), values, stride, within);
  for (int64_t i = 0; i < piece.count && !whole; ++i) {
    for (int64_t j = piece.first; j < piece.last; ++j) y[i * channels + j] = some[i * s.lanes + j];
  }
  for (int64_t i = 0; i < piece.count && p.mask != nullptr; ++i) {
    if (!p.padded(piece.b, piece.n + i)) continue;
    std::fill(y + i * channels + piece.first, y + i * channels + piece.last, Bits{0});
  }
  if (p.index_bytes > 0) write_positions(s, piece, within);
}

// Prefetches the output lines of the rows from n on.
RIFFLEMIX_INLINE void foresee_outputs(const Problem& p, int64_t b, int64_t n, int64_t channel,
                                      int64_t count) {
  const int64_t at = (b * p.length + n) * p.channels + channel;
  const int64_t y_stride = p.channels * p.element_bytes, index_stride = p.channels * p.index_bytes;
  foresee(static_cast<const char*>(p.y) + at * p.element_bytes, y_stride, count);
  if (p.index_bytes == 0) return;
  foresee(static_cast<const char*>(p.index) + at * p.index_bytes, index_stride, count);
}

template <class Bits, class Key>
RIFFLEMIX_INLINE void write_run(const Sorting<Bits, Key>& s, const Columns<Bits>& columns,
                                const Keys<Key>* tile, int64_t b, int64_t start, const Run& run) {
  for (int64_t at = 0; at < s.p.group_size; at += kChunk) {
    foresee_outputs(s.p, b, start + at + kChunk, columns.first + run.low,
                    std::min(s.p.group_size - at - kChunk, kChunk));
    Piece<Bits, Key> piece{b, start + at, std::min(kChunk, s.p.group_size - at), start, 0, 0, 0};
    const Keys<Key>* rows[kChunk];
    for (int64_t i = 0; i < piece.count; ++i) {
      rows[i] = tile + tile_row(run.ranking == nullptr ? at + i : run.ranking[piece.n + i]);
    }
    for (int64_t lane = run.low / s.lanes * s.lanes; lane < run.high; lane += s.lanes) {
      piece.channel = columns.first + lane;
      piece.first = std::max<int64_t>(run.low - lane, 0);
      piece.last = std::min(run.high - lane, s.lanes);
      write_piece(s, piece, rows, lane / s.lanes * s.height(), columns.flip + lane);
    }
  }
}

// Calls body(sample, first token of the group, tile) for tasks first..last-1. Neighboring tasks are
// adjacent tiles of the same groups.
template <class Bits, class Key, class Body>
RIFFLEMIX_INLINE void for_tiles(const Sorting<Bits, Key>& s, int64_t num_tiles, int64_t first,
                                int64_t last, const Body& body) {
  const int64_t num_groups = s.p.length / s.p.group_size;
  for (int64_t task = first; task < last; ++task) {
    const int64_t block = task / num_tiles % s.blocks;
    const int64_t end = std::min((block + 1) * s.groups, num_groups);
    for (int64_t group = block * s.groups; group < end; ++group) {
      body(task / num_tiles / s.blocks, group * s.p.group_size, task % num_tiles);
    }
  }
}

// Computes the ranks of the heads' reference channels.
template <class Bits, class Key>
RIFFLEMIX_INLINE void rank_leaders(const Sorting<Bits, Key>& s, int64_t first, int64_t last,
                                   int64_t slot) {
  const Problem& p = s.p;
  for_tiles(s, quotient_up(p.heads, s.line), first, last,
            [&](int64_t b, int64_t start, int64_t tile) __attribute__((always_inline)) {
    const Columns<Bits> leaders(p, tile, p.heads, p.channels / p.heads);
    const Keys<Key>* sorted = sort_tile(s, leaders, b, start, slot);
    for (int64_t j = 0; j < leaders.count; ++j) {
      const Keys<Key>* column = sorted + j / s.lanes * s.height();
      int32_t* ranking = s.ranking(b, tile * s.line + j) + start;
      for (int64_t i = 0; i < p.group_size; ++i) {
        ranking[index_of(column[tile_row(i)][j % s.lanes])] = static_cast<int32_t>(i);
      }
    }
  });
}

// Computes ranks that put a group's valid positions before its padding, in their original order.
template <class Bits, class Key>
void rank_valid_first(const Sorting<Bits, Key>& s) {
  const Problem& p = s.p;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t start = 0; start < p.length; start += p.group_size) {
      int32_t rank = 0;
      for (const bool kind : {false, true}) {
        for (int64_t n = start; n < start + p.group_size; ++n) {
          if (p.padded(b, n) == kind) s.ranking(b, 0)[n] = rank++;
        }
      }
    }
  }
}

template <class Bits, class Key>
RIFFLEMIX_INLINE void sort_tiles(const Sorting<Bits, Key>& s, int64_t first, int64_t last,
                                 int64_t slot) {
  const Problem& p = s.p;
  const int64_t width = p.heads > 0 ? p.channels / p.heads : p.channels;
  for_tiles(s, quotient_up(p.channels, s.line), first, last,
            [&](int64_t b, int64_t start, int64_t tile) __attribute__((always_inline)) {
    const Columns<Bits> columns(p, tile, p.channels, 1);
    const Keys<Key>* sorted = sort_tile(s, columns, b, start, slot);
    for (int64_t low = 0, high; low < columns.count; low = high) {
      const int64_t head = (columns.first + low) / width;
      high = std::min(columns.count, (head + 1) * width - columns.first);
      const int32_t* ranking = s.num_rankings > 0 ? s.ranking(b, head) : nullptr;
      write_run(s, columns, sorted, b, start, {low, high, ranking});
    }
  });
}

#define RIFFLEMIX_SORT(Bits, Key)                                                               \
  RIFFLEMIX_DISPATCH(void, rank_leaders_of,                                                     \
                     (const Sorting<Bits, Key>& s, int64_t first, int64_t last, int64_t slot),  \
                     (s, first, last, slot), { rank_leaders(s, first, last, slot); })           \
  RIFFLEMIX_DISPATCH(void, sort_tiles_of,                                                       \
                     (const Sorting<Bits, Key>& s, int64_t first, int64_t last, int64_t slot),  \
                     (s, first, last, slot), { sort_tiles(s, first, last, slot); })
RIFFLEMIX_SORT(int32_t, int64_t)
RIFFLEMIX_SORT(int16_t, int32_t)
RIFFLEMIX_SORT(int16_t, int64_t)

template <class Bits, class Key>
int64_t group_sort(const Problem& p) {
  Arena arena(p.scratch);
  const Sorting<Bits, Key> s(p, arena);
  if (p.scratch == nullptr) return arena.used();
  s.shift.prepare(p);
  if (p.heads > 0) {
    share(p, p.batch * s.blocks * quotient_up(p.heads, s.line),
          [&](int64_t first, int64_t last, int64_t t) { rank_leaders_of(s, first, last, t); });
  } else if (p.mask != nullptr) {
    rank_valid_first(s);
  }
  share(p, p.batch * s.blocks * quotient_up(p.channels, s.line),
        [&](int64_t first, int64_t last, int64_t t) { sort_tiles_of(s, first, last, t); });
  return 0;
}

}  // namespace rifflemix::permutation

using rifflemix::permutation::Problem;

RIFFLEMIX_EXPORT int64_t rifflemix_group_sort(const Problem* p) {
  using rifflemix::permutation::group_sort;
  return rifflemix::guarded([&] {
    if (p->element_bytes == 4) return group_sort<int32_t, int64_t>(*p);
    // A 32-bit key of a 16-bit value has 15 bits for the index.
    if (p->group_size <= 1 << 15) return group_sort<int16_t, int32_t>(*p);
    return group_sort<int16_t, int64_t>(*p);
  });
}
