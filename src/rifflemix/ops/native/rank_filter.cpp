// Of each channel's last tokens the one that has the channel's rank among them.
//
// A window keeps the ranks of its tokens. When it moves on by a token, the others' are corrected:
// by -1 where the token that leaves came before, by +1 where the one that comes does. Before the
// first token there are zeros.

#include "permutation.h"

namespace rifflemix::permutation {

constexpr int64_t kLinesPerTask = 8;
constexpr int64_t kTokensPerTask = 1024;

// The sizes of a filter and its pieces of the scratch memory.
template <class Bits>
struct Filtering {
  static constexpr int64_t lanes = kVectorBytes / sizeof(Bits);
  static constexpr int64_t width = kLinesPerTask * kLine<Bits>;

  const Problem& p;
  int64_t blocks;     // of channels
  int64_t stretches;  // of tokens
  int64_t stretch;    // tokens in one
  Bits* wanted;       // (blocks, width): the rank that each channel takes
  Bits* windows;      // (slots, 3, group_size, width): values, keys and ranks

  Filtering(const Problem& problem, Arena& arena)
      : p(problem),
        blocks(quotient_up(p.channels, width)),
        stretch(std::max(kTokensPerTask, 8 * p.group_size)),
        wanted(arena.take<Bits>(blocks * width)),
        windows(arena.take<Bits>(p.useful_threads() * 3 * p.group_size * width)) {
    stretches = quotient_up(p.length, stretch);
  }

  void prepare() const {
    std::fill(wanted, wanted + blocks * width, Bits{0});
    for (int64_t c = 0; c < p.channels; ++c) wanted[c] = static_cast<Bits>(p.steps[c]);
  }
};

// The last tokens of one block of channels; token i of those that came is in slot i % size.
template <class Bits>
struct Window {
  int64_t size;
  Bits *values, *keys, *ranks;  // (size, width)

  RIFFLEMIX_INLINE Window(const Filtering<Bits>& f, int64_t of)
      : size(f.p.group_size),
        values(f.windows + of * 3 * size * f.width),
        keys(values + size * f.width),
        ranks(keys + size * f.width) {
    std::fill(values, ranks, Bits{0});
    for (int64_t s = 0; s < size; ++s) {
      std::fill(ranks + s * f.width, ranks + (s + 1) * f.width, static_cast<Bits>(s));
    }
  }
};

// Puts a vector of a token in place of the oldest, in `slot`. Gives the value of the wanted rank
// and the slot that it is in.
template <int kSize, class Bits, class V>
RIFFLEMIX_INLINE void replace_oldest(const Window<Bits>& window, int64_t at, int64_t slot, V value,
                                     V wanted, const Format<Bits>& format, V* taken, V* place) {
  constexpr int64_t width = Filtering<Bits>::width;
  const int64_t size = kSize > 0 ? kSize : window.size;
  const V key = ordered(value, format), gone = load<V>(window.keys + slot * width + at);
  V rank = V{} + static_cast<Bits>(size - 1), found = {}, where = {};
  const auto meet = [&](int64_t s) __attribute__((always_inline)) {
    const V other = load<V>(window.keys + s * width + at);
    const V before = key < other;  // -1 where it is true: of equal tokens the older comes first
    const V now = load<V>(window.ranks + s * width + at) + (gone <= other) - before;
    std::memcpy(window.ranks + s * width + at, &now, sizeof(now));
    rank += before;
    const V hit = now == wanted;
    found |= hit & load<V>(window.values + s * width + at);
    where |= hit & (V{} + static_cast<Bits>(s));
  };
  for (int64_t s = 0; s < slot; ++s) meet(s);
  for (int64_t s = slot + 1; s < size; ++s) meet(s);
  const V hit = rank == wanted;
  *taken = found | (hit & value);
  *place = where | (hit & (V{} + static_cast<Bits>(slot)));
  std::memcpy(window.values + slot * width + at, &value, sizeof(value));
  std::memcpy(window.keys + slot * width + at, &key, sizeof(key));
  std::memcpy(window.ranks + slot * width + at, &rank, sizeof(rank));
}

// A vector of one token's channels, of which `some` are there. y and back are null while a window
// is being filled.
template <int kSize, bool kWhole, class Bits>
RIFFLEMIX_INLINE void filter_vector(const Window<Bits>& window, const Format<Bits>& format,
                                    int64_t slot, int64_t at, int64_t some, const Bits* x,
                                    const Bits* wanted, Bits* y, uint8_t* back) {
  constexpr int64_t lanes = Filtering<Bits>::lanes;
  using V = Vector<Bits, lanes>;
  using Bytes = Vector<uint8_t, lanes>;
  V value = {}, taken, place;
  std::memcpy(&value, x + at, kWhole ? sizeof(value) : some * sizeof(Bits));
  replace_oldest<kSize>(window, at, slot, value, load<V>(wanted + at), format, &taken, &place);
  if (y != nullptr) std::memcpy(y + at, &taken, kWhole ? sizeof(taken) : some * sizeof(Bits));
  if (back == nullptr) return;
  const V behind = V{} + static_cast<Bits>(slot) - place;
  const V ago = behind + ((behind < 0) & static_cast<Bits>(window.size));
  const Bytes bytes = __builtin_convertvector(ago, Bytes);
  std::memcpy(back + at, &bytes, kWhole ? sizeof(bytes) : some);
}

// A stretch of tokens of a block of channels of a sample. The problem is copied: a
// store could else change it, for all that a compiler knows.
template <int kSize, class Bits>
RIFFLEMIX_INLINE void filter_stretch(const Filtering<Bits>& f, int64_t task, int64_t of) {
  constexpr int64_t lanes = Filtering<Bits>::lanes;
  const Problem p = f.p;
  const Format<Bits> format = p.template format<Bits>();
  const int64_t block = task % f.blocks, b = task / f.blocks / f.stretches;
  const int64_t first = task / f.blocks % f.stretches * f.stretch;
  const int64_t last = std::min(p.length, first + f.stretch);
  const int64_t channel = block * f.width, count = std::min(f.width, p.channels - channel);
  const int64_t whole = count / lanes * lanes;
  const Bits* wanted = f.wanted + channel;
  const Window<Bits> window(f, of);
  int64_t slot = 0;
  for (int64_t n = std::max<int64_t>(0, first - p.group_size + 1); n < last; ++n) {
    const Bits* x = p.row<Bits>(b, n) + channel;
    const int64_t out = (b * p.length + n) * p.channels + channel;
    if (n + 2 < last) foresee(x + 2 * p.row_stride, kLineBytes, kLinesPerTask);
    Bits* y = n < first ? nullptr : static_cast<Bits*>(p.y) + out;
    uint8_t* back = n < first || p.index_bytes == 0 ? nullptr : static_cast<uint8_t*>(p.index) + out;
    for (int64_t at = 0; at < whole; at += lanes) {
      filter_vector<kSize, true>(window, format, slot, at, lanes, x, wanted, y, back);
    }
    if (whole < count) {
      filter_vector<kSize, false>(window, format, slot, whole, count - whole, x, wanted, y, back);
    }
    slot = slot + 1 == p.group_size ? 0 : slot + 1;
  }
}

#define RIFFLEMIX_FILTER(Bits)                                                               \
  RIFFLEMIX_DISPATCH(void, filter_stretch_of,                                                \
                     (const Filtering<Bits>& f, int64_t task, int64_t of), (f, task, of), { \
    switch (f.p.group_size) {                                                                \
      case 2: return filter_stretch<2>(f, task, of);                                         \
      default: return filter_stretch<0>(f, task, of);                                        \
    }                                                                                        \
  })
RIFFLEMIX_FILTER(int32_t)
RIFFLEMIX_FILTER(int16_t)

template <class Bits>
int64_t rank_filter(const Problem& p) {
  Arena arena(p.scratch);
  const Filtering<Bits> f(p, arena);
  if (p.scratch == nullptr) return arena.used();
  f.prepare();
  share(p, p.batch * f.stretches * f.blocks, [&](int64_t first, int64_t last, int64_t of) {
    for (int64_t task = first; task < last; ++task) filter_stretch_of(f, task, of);
  });
  return 0;
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_rank_filter(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::rank_filter;
  return rifflemix::guarded(
      [&] { return p->element_bytes == 4 ? rank_filter<int32_t>(*p) : rank_filter<int16_t>(*p); });
}
