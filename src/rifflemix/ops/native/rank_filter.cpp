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

// Puts a vector of token `passed` in place of the oldest, in `slot`. Gives the value of the wanted
// rank and, where `kKeep`, the slot that it is in. The number of tokens so far is added to every
// rank, so that a token that leaves and one that comes cost the others a subtraction each.
template <int kSize, bool kKeep, class Bits, class V>
RIFFLEMIX_INLINE void replace_oldest(const Window<Bits>& window, int64_t at, int64_t slot,
                                     Bits passed, V value, V wanted, const Format<Bits>& format,
                                     V* taken, V* place) {
  constexpr int64_t width = Filtering<Bits>::width;
  const int64_t size = kSize > 0 ? kSize : window.size;
  const V key = ordered(value, format), gone = load<V>(window.keys + slot * width + at);
  V rank = V{} + static_cast<Bits>(size + passed);
  V found = value, where = V{} + static_cast<Bits>(slot);
  wanted += static_cast<Bits>(passed + 1);
  const auto meet = [&](int64_t s) __attribute__((always_inline)) {
    const V other = load<V>(window.keys + s * width + at);
    const V before = key < other;  // -1 where it is true: of equal tokens the older comes first
    const V now = load<V>(window.ranks + s * width + at) - (gone > other) - before;
    std::memcpy(window.ranks + s * width + at, &now, sizeof(now));
    rank += before;
    const V hit = now == wanted;
    found = hit ? load<V>(window.values + s * width + at) : found;
    if (kKeep) where = hit ? V{} + static_cast<Bits>(s) : where;
  };
  for (int64_t s = 0; s < slot; ++s) meet(s);
  for (int64_t s = slot + 1; s < size; ++s) meet(s);
  *taken = found;
  *place = where;
  std::memcpy(window.values + slot * width + at, &value, sizeof(value));
  std::memcpy(window.keys + slot * width + at, &key, sizeof(key));
  std::memcpy(window.ranks + slot * width + at, &rank, sizeof(rank));
}

// A vector of one token's channels, of which `some` are there. y is null while a window is being
// filled; `ago` is how many tokens back each value was taken.
template <int kSize, bool kKeep, bool kWhole, class Bits>
RIFFLEMIX_INLINE void filter_vector(const Window<Bits>& window, const Format<Bits>& format,
                                    int64_t slot, Bits passed, int64_t at, int64_t some,
                                    const Bits* x, const Bits* wanted, Bits* y, Bits* ago) {
  using V = Vector<Bits, Filtering<Bits>::lanes>;
  V value = {}, taken, place;
  std::memcpy(&value, x + at, kWhole ? sizeof(value) : some * sizeof(Bits));
  replace_oldest<kSize, kKeep>(window, at, slot, passed, value, load<V>(wanted + at), format,
                               &taken, &place);
  if (y != nullptr) std::memcpy(y + at, &taken, kWhole ? sizeof(taken) : some * sizeof(Bits));
  if (!kKeep) return;
  const V behind = V{} + static_cast<Bits>(slot) - place;
  const V distance = behind + ((behind < 0) & static_cast<Bits>(window.size));
  std::memcpy(ago + at, &distance, sizeof(distance));
}

// A stretch of tokens of a block of channels of a sample. The problem is copied: a
// store could else change it, for all that a compiler knows.
template <int kSize, bool kKeep, class Bits>
RIFFLEMIX_INLINE void filter_stretch(const Filtering<Bits>& f, int64_t task, int64_t of) {
  constexpr int64_t lanes = Filtering<Bits>::lanes;
  const Problem p = f.p;
  const Format<Bits> format = p.template format<Bits>();
  const int64_t block = task % f.blocks, b = task / f.blocks / f.stretches;
  const int64_t first = task / f.blocks % f.stretches * f.stretch;
  const int64_t start = std::max<int64_t>(0, first - p.group_size + 1);
  const int64_t last = std::min(p.length, first + f.stretch);
  const int64_t channel = block * f.width, count = std::min(f.width, p.channels - channel);
  const int64_t whole = count / lanes * lanes;
  const Bits* wanted = f.wanted + channel;
  const Window<Bits> window(f, of);
  Bits ago[Filtering<Bits>::width];
  int64_t slot = 0;
  for (int64_t n = start; n < last; ++n) {
    const Bits passed = static_cast<Bits>(n - start);
    const Bits* x = p.row<Bits>(b, n) + channel;
    const int64_t out = (b * p.length + n) * p.channels + channel;
    if (n + 2 < last) foresee(x + 2 * p.row_stride, kLineBytes, kLinesPerTask);
    Bits* y = n < first ? nullptr : static_cast<Bits*>(p.y) + out;
    for (int64_t at = 0; at < whole; at += lanes) {
      filter_vector<kSize, kKeep, true>(window, format, slot, passed, at, lanes, x, wanted, y, ago);
    }
    if (whole < count) {
      filter_vector<kSize, kKeep, false>(window, format, slot, passed, whole, count - whole, x,
                                         wanted, y, ago);
    }
    if (kKeep && n >= first) {
      uint8_t* back = static_cast<uint8_t*>(p.index) + out;
      for (int64_t c = 0; c < count; ++c) back[c] = static_cast<uint8_t>(ago[c]);
    }
    slot = slot + 1 == p.group_size ? 0 : slot + 1;
  }
}

template <bool kKeep, class Bits>
RIFFLEMIX_INLINE void filter_sizes(const Filtering<Bits>& f, int64_t task, int64_t of) {
  if (f.p.group_size == 2) return filter_stretch<2, kKeep>(f, task, of);
  return filter_stretch<0, kKeep>(f, task, of);
}

#define RIFFLEMIX_FILTER(Bits)                                                              \
  RIFFLEMIX_DISPATCH(void, filter_stretch_of,                                               \
                     (const Filtering<Bits>& f, int64_t task, int64_t of), (f, task, of), { \
    if (f.p.index_bytes == 0) return filter_sizes<false>(f, task, of);                      \
    return filter_sizes<true>(f, task, of);                                                 \
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
