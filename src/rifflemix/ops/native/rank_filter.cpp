// Rank filter: for each channel, selects the token with the channel's rank among the last tokens.
//
// Short windows are sorted (rank_windows.h). Longer windows store the ranks of their tokens. When
// the window moves by one token, the ranks of the others change: -1 if the removed token was ranked
// before, +1 if the new token is. The sequence is preceded by zeros.

#include "rank_filter.h"

namespace rifflemix::permutation {

// The last tokens of one block of channels; token i is in slot i % size.
template <class Bits>
struct Window {
  static constexpr int64_t width = 8 * kLine<Bits>;
  int64_t size;
  Bits *values, *keys, *ranks;  // (size, width)

  RIFFLEMIX_INLINE explicit Window(const Stretch<Bits>& s)
      : size(s.p.group_size),
        values(reinterpret_cast<Bits*>(s.window)),
        keys(values + size * width),
        ranks(keys + size * width) {
    std::fill(values, ranks, Bits{0});
    for (int64_t slot = 0; slot < size; ++slot) {
      std::fill(ranks + slot * width, ranks + (slot + 1) * width, static_cast<Bits>(slot));
    }
  }
};

// Replaces the oldest token, in `slot`, by a vector of token `passed`. Returns the value of the
// wanted rank and, if `kKeep`, its distance in tokens. Stored ranks include the number of tokens so
// far, so each removed and each new token needs only one subtraction per rank.
template <bool kKeep, class Bits, class V>
RIFFLEMIX_INLINE V replace_oldest(const Window<Bits>& window, int64_t at, int64_t slot, Bits passed,
                                  V value, V wanted, const Format<Bits>& format, V* ago) {
  constexpr int64_t width = Window<Bits>::width;
  const V key = ordered(value, format), gone = load<V>(window.keys + slot * width + at);
  V rank = V{} + static_cast<Bits>(window.size + passed);
  V found = value, place = V{} + static_cast<Bits>(slot);
  wanted += static_cast<Bits>(passed + 1);
  const auto meet = [&](int64_t s) __attribute__((always_inline)) {
    const V other = load<V>(window.keys + s * width + at);
    const V before = key < other;  // -1 = true; the older of equal tokens comes first
    const V now = load<V>(window.ranks + s * width + at) - (gone > other) - before;
    std::memcpy(window.ranks + s * width + at, &now, sizeof(now));
    rank += before;
    const V hit = now == wanted;
    found = hit ? load<V>(window.values + s * width + at) : found;
    if (kKeep) place = hit ? V{} + static_cast<Bits>(s) : place;
  };
  for (int64_t s = 0; s < slot; ++s) meet(s);
  for (int64_t s = slot + 1; s < window.size; ++s) meet(s);
  std::memcpy(window.values + slot * width + at, &value, sizeof(value));
  std::memcpy(window.keys + slot * width + at, &key, sizeof(key));
  std::memcpy(window.ranks + slot * width + at, &rank, sizeof(rank));
  const V behind = static_cast<Bits>(slot) - place;
  *ago = behind + ((behind < 0) & static_cast<Bits>(window.size));
  return found;
}

template <bool kKeep, class Bits>
RIFFLEMIX_INLINE void filter_by_correction(const Stretch<Bits>& s) {
  using V = Vector<Bits, kVectorBytes / sizeof(Bits)>;
  constexpr int64_t lanes = kVectorBytes / sizeof(Bits), width = Window<Bits>::width;
  const Window<Bits> window(s);
  Bits row[width] = {}, back[width];
  const int64_t start = std::max<int64_t>(0, s.first - window.size + 1);
  int64_t slot = 0;
  for (int64_t n = start; n < s.last; ++n) {
    std::memcpy(row, s.x(n), s.count * sizeof(Bits));
    if (n + 2 < s.last) {
      foresee(s.x(n + 2), kLineBytes, 8);
      foresee(s.y(n + 2), kLineBytes, 8);
      if (kKeep) foresee(s.ago(n + 2), kLineBytes, 8 / sizeof(Bits));
    }
    for (int64_t at = 0; at < s.count; at += lanes) {
      V ago;
      const V taken = replace_oldest<kKeep>(window, at, slot, static_cast<Bits>(n - start),
                                            load<V>(row + at), load<V>(s.wanted + at), s.format,
                                            &ago);
      std::memcpy(row + at, &taken, sizeof(taken));
      if (kKeep) std::memcpy(back + at, &ago, sizeof(ago));
    }
    slot = slot + 1 == window.size ? 0 : slot + 1;
    if (n < s.first) continue;
    std::memcpy(s.y(n), row, s.count * sizeof(Bits));
    if (!kKeep) continue;
    const int64_t count = s.count;
    uint8_t* const to = s.ago(n);
    for (int64_t c = 0; c < count; ++c) to[c] = static_cast<uint8_t>(back[c]);
  }
}

#define RIFFLEMIX_FILTER(Bits)                                                          \
  RIFFLEMIX_DISPATCH(void, filter_stretch, (const Stretch<Bits>& s), (s), {             \
    if (s.p.index_bytes == 0) return filter_by_correction<false>(s);                    \
    filter_by_correction<true>(s);                                                      \
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
    for (int64_t task = first; task < last; ++task) {
      const Stretch<Bits> stretch(f, task, of);
      f.sorts ? filter_by_sorting(stretch) : filter_stretch(stretch);
    }
  });
  return 0;
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_rank_filter(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::rank_filter;
  return rifflemix::guarded(
      [&] { return p->element_bytes == 4 ? rank_filter<int32_t>(*p) : rank_filter<int16_t>(*p); });
}
