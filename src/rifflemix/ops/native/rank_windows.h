// Sorts four consecutive windows of up to eight tokens together.
//
// The tokens shared by all four windows are sorted once. Two more tokens give the tokens shared by
// the first two windows, and two others those shared by the last two windows. Each window then
// lacks one token. The token of the wanted rank is the missing token or one of its two possible
// sorted neighbors. An exchange is a minimum and a maximum of keys. To find the distance of the
// token, a 16-bit key is combined with the token's number, and a 32-bit key is searched in its
// window.

#pragma once

#include <utility>

#include "rank_filter.h"

namespace rifflemix::permutation {

constexpr int64_t kTogether = 4;  // windows
constexpr int64_t kPast = 8;      // tokens before a run that its windows may include
constexpr int64_t kRun = 8;       // tokens in a run; its last tokens are the past of the next run
constexpr int kSpecialFours = 3;  // maximum groups of four windows that contain one token
static_assert(kPast + kRun == kShortRows && kPast >= kShortWindow, "windows of a run in the rows");

// Vectors longer than the processor's registers would be split.
#if defined(__aarch64__) || (defined(RIFFLEMIX_ONE_INSTRUCTION_SET) && !defined(__AVX2__))
constexpr int kShortBytes = 16;
#else
constexpr int kShortBytes = 32;
#endif
template <class Key>
using Short = Vector<Key, kShortBytes / sizeof(Key)>;

template <class V>
RIFFLEMIX_INLINE V smaller(V a, V b) {
  return a < b ? a : b;
}
template <class V>
RIFFLEMIX_INLINE V larger(V a, V b) {
  return a < b ? b : a;
}
template <class V>
RIFFLEMIX_INLINE bool any(V mask) {
  uint64_t words[sizeof(V) / sizeof(uint64_t)], all = 0;
  std::memcpy(words, &mask, sizeof(mask));
  for (uint64_t word : words) all |= word;
  return all != 0;
}

template <class V>
RIFFLEMIX_INLINE void exchange(V& first, V& second) {
  const V low = smaller(first, second);
  second = larger(first, second);
  first = low;
}

// Inserts a key into kCount sorted keys.
template <int kCount, class V>
RIFFLEMIX_INLINE void insert(V* sorted, V key) {
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) exchange(sorted[i], key);
  sorted[kCount] = key;
}

// Inserts two keys into kCount sorted keys; kCount is odd. The smaller key is inserted into the
// keys at even positions, the larger key into the others. Then neighbors are exchanged (Batcher's
// merge).
template <int kCount, class V>
RIFFLEMIX_INLINE void insert_two(const V* sorted, V a, V b, V* all) {
  constexpr int half = kCount / 2;
  V even[half + 2], odd[half + 1];
#pragma GCC unroll 8
  for (int i = 0; i <= half; ++i) even[i] = sorted[2 * i];
#pragma GCC unroll 8
  for (int i = 0; i < half; ++i) odd[i] = sorted[2 * i + 1];
  exchange(a, b);
  insert<half + 1>(even, a);
  insert<half>(odd, b);
  all[0] = even[0];
#pragma GCC unroll 8
  for (int i = 0; i <= half; ++i) {
    exchange(odd[i], even[i + 1]);
    all[2 * i + 1] = odd[i];
    all[2 * i + 2] = even[i + 1];
  }
}

// log2 of 1, 2 or 4.
constexpr int log2_of(int bit) { return bit / 2; }

// Windows of up to kMost (4 or 8) tokens, with rows of keys that are kShortWidth apart. Smaller
// windows are filled up with the largest key.
template <int kMost, class Key>
struct Windows {
  using V = Short<Key>;
  static constexpr int kShared = kMost - 3;

  int64_t size;

  static RIFFLEMIX_INLINE V row(const Key* keys, int64_t i) {
    return load<V>(keys + i * kShortWidth);
  }
  // A row, or the largest key if the windows do not contain the token.
  static RIFFLEMIX_INLINE V row_if(bool there, const Key* keys, int64_t i) {
    const Key least = there ? kSign<Key> : kTop<Key>;
    return larger(row(keys, i), V{} + least);
  }

  // Keys of the wanted rank for the windows that end at row `last` and the three rows after it.
  RIFFLEMIX_INLINE void filter(const Key* last, V wanted, V* taken) const {
    const Key* const first = last - (size - 1) * kShortWidth;
    V shared[kShared], sorted[kMost - 1];
    if constexpr (kMost == 4) {
      shared[0] = row_if(size > 3, first, 3);
    } else {
      share_five(first, shared);
    }
    // Only windows of two tokens lack these two tokens.
    const V older = kMost == 4 ? row_if(size > 2, first, 2) : row(first, 2);
    const V newer = kMost == 4 ? row_if(size > 2, last, 1) : row(last, 1);
    insert_two<kShared>(shared, older, row(first, 1), sorted);
    take(sorted, row(first, 0), row(last, 1), wanted, taken);
    insert_two<kShared>(shared, newer, row(last, 2), sorted);
    take(sorted, row(first, 2), row(last, 3), wanted, taken + 2);
  }

  // Sorts the tokens shared by four windows of five to eight tokens.
  RIFFLEMIX_INLINE void share_five(const Key* first, V* s) const {
    s[0] = row(first, 3);
    s[1] = row(first, 4);
#pragma GCC unroll 4
    for (int i = 2; i < 5; ++i) s[i] = row_if(i + 3 < size, first, i + 3);
    exchange(s[0], s[3]);
    exchange(s[1], s[4]);
    exchange(s[0], s[2]);
    exchange(s[1], s[3]);
    exchange(s[0], s[1]);
    exchange(s[2], s[4]);
    exchange(s[1], s[2]);
    exchange(s[3], s[4]);
    exchange(s[2], s[3]);
  }

  // Finds the keys of the wanted rank for two windows. Both contain the sorted keys; one also
  // contains `older`, the other `newer`. The bits of the rank select the two sorted neighbors.
  static RIFFLEMIX_INLINE void take(const V* sorted, V older, V newer, V wanted, V* taken) {
    V around[kMost + 1];
    around[0] = V{} + kSign<Key>;
#pragma GCC unroll 8
    for (int i = 1; i < kMost; ++i) around[i] = sorted[i - 1];
    around[kMost] = V{} + kTop<Key>;
#pragma GCC unroll 4
    for (int bit = kMost / 2; bit > 0; bit /= 2) {
      const V past = (wanted << (8 * sizeof(Key) - 1 - log2_of(bit))) < 0;
#pragma GCC unroll 8
      for (int i = 0; i <= bit; ++i) around[i] = past ? around[i + bit] : around[i];
    }
    taken[0] = larger(around[0], smaller(older, around[1]));
    taken[1] = larger(around[0], smaller(newer, around[1]));
  }
};

typedef Short<int8_t> Bytes;

// Builds elements with byte i taken from vector i.
template <int kParts, class V, std::size_t... At>
RIFFLEMIX_INLINE Bytes byte_of_each(const V* vectors, std::index_sequence<At...>) {
  constexpr Bytes odd = {(At % 2 == 1 ? -1 : 0)...}, late = {(At % 4 >= 2 ? -1 : 0)...};
  const Bytes first = odd ? (Bytes)vectors[1] : (Bytes)vectors[0];
  if constexpr (kParts == 2) {
    return first;
  } else {
    return late ? (odd ? (Bytes)vectors[3] : (Bytes)vectors[2]) : first;
  }
}

// Finds the distances of the taken keys, for windows that end at row `last` and at the next rows.
// The distances are packed as one byte per window. Returns false if a window has equal keys.
template <int kMost, class Key, class V>
RIFFLEMIX_INLINE bool find(const Key* last, const V* taken, int64_t size, Bytes* ago) {
  constexpr int parts = sizeof(Key);
  Bytes found = {};  // sum over the tokens found of 16 + distance
#pragma GCC unroll 8
  for (int i = 0; i < kMost; ++i) {
    if (i > 1 && i >= size) break;
    V equal[parts];
#pragma GCC unroll 4
    for (int w = 0; w < parts; ++w) equal[w] = load<V>(last + (w - i) * kShortWidth) == taken[w];
    const Bytes equals = byte_of_each<parts>(equal, std::make_index_sequence<sizeof(V)>());
    found += equals & static_cast<int8_t>(16 + i);
  }
  *ago = found & 15;
  return !any(found & static_cast<int8_t>(0xE0));
}

// The same for one window with equal keys: selects the token that has the rank.
template <class Key, class V>
RIFFLEMIX_INLINE V find_among_equals(const Key* last, V taken, V wanted, int64_t size) {
  V left = wanted, ago = {};  // equal tokens to skip
  for (int64_t i = 0; i < size; ++i) left += load<V>(last - i * kShortWidth) < taken;
  for (int64_t i = size - 1; i >= 0; --i) {
    const V equal = load<V>(last - i * kShortWidth) == taken;
    ago |= equal & (left == 0) & static_cast<Key>(i);
    left += equal;
  }
  return ago;
}

// Selects elements of two vectors, with indices into their concatenation.
template <int... kAt, class V>
RIFFLEMIX_INLINE V chosen(V first, V second) {
#if defined(__clang__)
  return __builtin_shufflevector(first, second, kAt...);
#else
  return __builtin_shuffle(first, second, V{kAt...});
#endif
}

// Interleaves the even elements of one vector with the odd elements of the other.
template <class V, std::size_t... At>
RIFFLEMIX_INLINE V alternate(V even, V odd, std::index_sequence<At...>) {
  return chosen<int(At + At % 2 * sizeof...(At))...>(even, odd);
}
template <class V>
RIFFLEMIX_INLINE V alternate(V even, V odd) {
  return alternate(even, odd, std::make_index_sequence<sizeof(V) / sizeof(even[0])>());
}

// Reorders a vector: every kParts-th element from the first on, then from the second on, and so on.
template <int kParts, class V, std::size_t... At>
RIFFLEMIX_INLINE V by_part(V vector, std::index_sequence<At...>) {
  constexpr int lanes = sizeof...(At) / kParts;
  return chosen<(int(At) % lanes * kParts + int(At) / lanes)...>(vector, vector);
}
template <int kParts, class V>
RIFFLEMIX_INLINE V by_part(V vector) {
  return by_part<kParts>(vector, std::make_index_sequence<sizeof(V) / sizeof(vector[0])>());
}

}  // namespace rifflemix::permutation
