// Rank filter for short windows; rank_windows.h describes the sort.

#include "rank_windows.h"

namespace rifflemix::permutation {

// Rows of a tensor or a buffer.
template <class T>
struct Rows {
  T* first;
  int64_t stride;

  RIFFLEMIX_INLINE T* row(int64_t i) const { return first + i * stride; }
};

// Inputs and outputs of tokens n to n + 3: in the tensors or, at their edges, in buffers.
template <class Bits>
struct Four {
  int64_t n;
  Rows<const Bits> x;
  Rows<Bits> y;
  Rows<uint8_t> ago;
};

// Reads values by their distance from token n, for keys that cannot be converted back.
template <class Bits>
RIFFLEMIX_INLINE Short<Bits> value_ago(const Stretch<Bits>& s, int64_t n, int64_t at,
                                       Short<Bits> ago) {
  using V = Short<Bits>;
  const int64_t count = std::min<int64_t>(sizeof(V) / sizeof(Bits), s.count - at);
  V value = {};
  for (int64_t i = 0; i < s.p.group_size && i <= n; ++i) {
    V old = {};
    std::memcpy(&old, s.x(n - i) + at, count * sizeof(Bits));
    value = ago == static_cast<Bits>(i) ? old : value;
  }
  return value;
}

// Converts the bits of a value to an integer in the order of the values, and back: -1 for -0.0, NaN
// beyond the infinities.
template <class Bits>
RIFFLEMIX_INLINE Short<Bits> reordered(Short<Bits> bits) {
  return bits ^ ((bits >> (8 * sizeof(Bits) - 1)) & kTop<Bits>);
}

// A vector of 16-bit keys becomes two vectors of 32-bit keys, for even and odd channels. The lower
// half of a key is the number of the token in its stretch, so the keys of a channel are unique.
typedef Short<int16_t> Narrow;
typedef Short<int32_t> Wide;
constexpr int kWideLanes = kShortBytes / sizeof(int32_t);
static_assert(kTokensOfStretch + kPast + kTogether <= kTop<int16_t>, "numbers of 15 bits");

// Combines the lower halves of one vector with the upper halves of the other.
RIFFLEMIX_INLINE Wide halves(Wide low, Wide high) {
  return (Wide)alternate((Narrow)low, (Narrow)high);
}

// Writes a vector of keys of the token with this number.
template <class Bits>
RIFFLEMIX_INLINE void put_keys(Short<Bits> keys, int64_t, Bits* to) {
  std::memcpy(to, &keys, sizeof(keys));
}
RIFFLEMIX_INLINE void put_keys(Narrow keys, int64_t number, int32_t* to) {
  const Wide both = (Wide)keys, below = Wide{} + static_cast<int32_t>(number);
  const Wide even = (both << 16) | below, odd = halves(below, both);
  std::memcpy(to, &even, sizeof(even));
  std::memcpy(to + kWideLanes, &odd, sizeof(odd));
}

// Writes the keys of four tokens to rows from `keys` on. Returns true if some keys cannot be
// converted back to values: the keys of NaN and -0.0 then have the order of equal tokens.
template <class Bits, class Key>
RIFFLEMIX_INLINE bool put_four(const Four<Bits>& four, int64_t at, const Format<Bits>& format,
                               int64_t token, Key* keys) {
  using V = Short<Bits>;
  V most = {}, special = {};
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    const V value = load<V>(four.x.row(i) + at);
    put_keys(reordered<Bits>(value), token + i, keys + i * kShortWidth);
    most = larger(most, value & kTop<Bits>);
    special |= value == kSign<Bits>;
  }
  if (!any(special | (most > format.infinity))) return false;
  for (int i = 0; i < kTogether; ++i) {
    const V value = load<V>(four.x.row(i) + at), last = V{} + static_cast<Bits>(kTop<Bits> - 1);
    const V number = value == kSign<Bits> ? V{} : reordered<Bits>(value);
    const V key = (value & kTop<Bits>) > format.infinity ? last : number;
    put_keys(key, token + i, keys + i * kShortWidth);
  }
  return true;
}

// Filters four windows of one vector of channels. The keys of their last tokens are in rows from
// `keys` on. `special`: a key of the windows cannot be converted back to its value.
template <int kMost, bool kKeep, class Bits>
RIFFLEMIX_INLINE void filter_by_key(const Stretch<Bits>& s, const Four<Bits>& four, int64_t at,
                                    const Bits* keys, bool special) {
  using V = Short<Bits>;
  constexpr int parts = sizeof(Bits), lanes = sizeof(V) / sizeof(Bits);
  const int64_t size = s.p.group_size;
  const V wanted = load<V>(s.wanted + at);
  V taken[kTogether], value[kTogether];
  Bytes ago[kTogether / parts];
  Windows<kMost, Bits>{size}.filter(keys, wanted, taken);
#pragma GCC unroll 4
  for (int w = 0; w < kTogether; ++w) value[w] = reordered<Bits>(taken[w]);
  bool found = true;
  if (kKeep) {
#pragma GCC unroll 4
    for (int w = 0; w < kTogether; w += parts) {
      found &= find<kMost>(keys + w * kShortWidth, taken + w, size, ago + w / parts);
    }
  }
  if (special || !found) {
    std::fill(ago, ago + kTogether / parts, Bytes{});
    for (int w = 0; w < kTogether; ++w) {
      const V back = find_among_equals(keys + w * kShortWidth, taken[w], wanted, size);
      ago[w / parts] |= (Bytes)(back << static_cast<Bits>(8 * (w % parts)));
      if (special && four.n + w < s.last) value[w] = value_ago(s, four.n + w, at, back);
    }
  }
#pragma GCC unroll 4
  for (int w = 0; w < kTogether; ++w) {
    std::memcpy(four.y.row(w) + at, value + w, sizeof(V));
    if (!kKeep) continue;
    const Bytes bytes = by_part<parts>(ago[w / parts]);
    std::memcpy(four.ago.row(w) + at, reinterpret_cast<const char*>(&bytes) + w % parts * lanes,
                lanes);
  }
}

// The same for keys that contain the number of their token.
template <int kMost>
RIFFLEMIX_INLINE void filter_by_wide_key(const Stretch<int16_t>& s, const Four<int16_t>& four,
                                         int64_t at, const int32_t* keys, int64_t number,
                                         bool special) {
  const Windows<kMost, int32_t> windows{s.p.group_size};
  const Wide wanted = load<Wide>(s.wanted + at);
  Wide even[kTogether], odd[kTogether];
  windows.filter(keys, wanted, even);  // upper bits: ranks of odd channels, ignored
  windows.filter(keys + kWideLanes, wanted >> 16, odd);
#pragma GCC unroll 2
  for (int w = 0; w < kTogether; w += 2) {
    // Two windows at a time.
    const Wide own = Wide{} + static_cast<int32_t>((number + w) | (number + w + 1) << 16);
    const Narrow even_ago = (Narrow)own - (Narrow)halves(even[w], even[w + 1] << 16);
    const Narrow odd_ago = (Narrow)own - (Narrow)halves(odd[w], odd[w + 1] << 16);
    const Narrow ago = by_part<2>(even_ago | (odd_ago << 8));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const char* const bytes = reinterpret_cast<const char*>(&ago) + i * sizeof(ago) / 2;
      std::memcpy(four.ago.row(w + i) + at, bytes, sizeof(ago) / 2);
      const Wide both = halves(even[w + i] >> 16, odd[w + i]);
      Narrow value = reordered<int16_t>((Narrow)both);
      if (special && four.n + w + i < s.last) {
        value = value_ago(s, four.n + w + i, at,
                          __builtin_convertvector(
                              load<permutation::Vector<int8_t, kShortBytes / 2>>(bytes), Narrow));
      }
      std::memcpy(four.y.row(w + i) + at, &value, sizeof(value));
    }
  }
}

// Filters four tokens of a block of channels. For each vector of channels, `special` counts the
// next groups of four windows that may contain a key without a value.
template <int kMost, bool kKeep, class Key, class Bits>
RIFFLEMIX_INLINE void filter_four(const Stretch<Bits>& s, const Four<Bits>& four, Key* keys,
                                  uint8_t* special) {
  constexpr int64_t lanes = sizeof(Short<Bits>) / sizeof(Bits);
  const int64_t number = four.n - s.first + kPast;
  for (int64_t at = 0; at < s.count; at += lanes, ++special) {
    if (at % kLine<Bits> == 0) {
      foresee(four.x.row(kTogether) + at, four.x.stride * sizeof(Bits), kTogether);
      foresee(four.y.row(kTogether) + at, four.y.stride * sizeof(Bits), kTogether);
      if (kKeep) foresee(four.ago.row(kTogether) + at, four.ago.stride, kTogether);
    }
    const bool is_special = put_four(four, at, s.format, number, keys + at);
    *special = is_special ? kSpecialFours : *special - (*special > 0);
    if constexpr (sizeof(Key) == sizeof(Bits)) {
      filter_by_key<kMost, kKeep>(s, four, at, keys + at, *special > 0);
    } else {
      filter_by_wide_key<kMost>(s, four, at, keys + at, number, *special > 0);
    }
  }
}

template <int kMost, bool kKeep, class Bits>
RIFFLEMIX_INLINE void filter_windows(const Stretch<Bits>& s) {
  using Key = std::conditional_t<kKeep, int32_t, Bits>;
  constexpr int64_t width = kShortWidth, lanes = sizeof(Short<Bits>) / sizeof(Bits);
  Key* const rows = reinterpret_cast<Key*>(s.window);
  uint8_t special[width / lanes] = {};
  Bits in[kTogether * width] = {}, out[kTogether * width];
  uint8_t out_ago[kTogether * width];
  int64_t row = kPast;
  for (int64_t n = s.first - kPast; n < s.last; n += kTogether) {
    const int64_t last = std::min(n + kTogether, s.last);
    const bool inside = n >= s.first && n + kTogether == last && s.count % lanes == 0;
    Four<Bits> four{n, {in, width}, {out, width}, {out_ago, width}};
    if (inside) {
      four.x = {s.x(n), s.p.row_stride};
      four.y = {s.y(n), s.p.channels};
      if (kKeep) four.ago = {s.ago(n), s.p.channels};
    }
    for (int64_t m = std::max<int64_t>(n, 0); !inside && m < last; ++m) {
      std::memcpy(in + (m - n) * width, s.x(m), s.count * sizeof(Bits));
    }
    filter_four<kMost, kKeep>(s, four, rows + row * width, special);
    for (int64_t m = std::max(n, s.first); !inside && m < last; ++m) {
      std::memcpy(s.y(m), out + (m - n) * width, s.count * sizeof(Bits));
      if (kKeep) std::memcpy(s.ago(m), out_ago + (m - n) * width, s.count);
    }
    row += kTogether;
    if (row < kPast + kRun) continue;
    row = kPast;
    std::memcpy(rows, rows + kRun * width, kPast * width * sizeof(Key));
  }
}

template <class Bits>
RIFFLEMIX_INLINE void filter_sizes(const Stretch<Bits>& s) {
  if (s.p.index_bytes == 0) {
    return s.p.group_size <= 4 ? filter_windows<4, false>(s) : filter_windows<8, false>(s);
  }
  if constexpr (sizeof(Bits) == 4) {
    if (s.p.group_size <= 4) return filter_windows<4, true>(s);
  }
  filter_windows<8, true>(s);
}

RIFFLEMIX_AVX2 void filter_by_sorting(const Stretch<int32_t>& s) { filter_sizes(s); }
RIFFLEMIX_AVX2 void filter_by_sorting(const Stretch<int16_t>& s) { filter_sizes(s); }

}  // namespace rifflemix::permutation
