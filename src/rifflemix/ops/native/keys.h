// Floating-point values as integer keys for a stable sort; a key contains the value.
//
// The upper half of a key is the value as an ordered integer. The lower half is the index of the
// token, followed by one bit that is set for -0.0. Keys are sorted in ascending order: equal values
// are ordered by index, NaN comes after all numbers, and padding after NaN.

#pragma once

#include <cstring>
#include <limits>

#include "kernels.h"

namespace rifflemix::permutation {

constexpr int kVectorBytes = 32;
constexpr int kLineBytes = 64;

template <class Key>
constexpr int kLanes = kVectorBytes / sizeof(Key);
template <class Bits>
constexpr int kLine = kLineBytes / sizeof(Bits);

template <class T, int Lanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * Lanes)));
};
template <class T, int Lanes>
using Vector = typename VectorOf<T, Lanes>::Type;

template <class V, class T>
RIFFLEMIX_INLINE V load(const T* from) {
  V vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class T>
constexpr T kTop = std::numeric_limits<T>::max();

// Constants that differ between floating-point types of the same width.
template <class Bits>
struct Format {
  Bits infinity;
  Bits nan;
};

template <class Bits>
constexpr Bits kSign = std::numeric_limits<Bits>::min();

// Converts a value to an integer with the same order: 0 for both zeros, the largest integer minus
// one for NaN. For descending order, flip the sign of the values first.
template <class Integer, class Bits>
RIFFLEMIX_INLINE Integer ordered(Integer bits, const Format<Bits>& format) {
  const Integer magnitude = bits & kTop<Bits>;
  const Integer negative = bits >> (8 * sizeof(bits[0]) - 1);
  const Integer key = (magnitude ^ negative) - negative;
  return magnitude > format.infinity ? Integer{} + (kTop<Bits> - 1) : key;
}

// Makes the keys of `count` vectors of values that are `stride` apart; `index` is the first
// vector's index in its group. `flip` is the sign bit for channels in descending order, else 0.
template <class Key, class Bits>
RIFFLEMIX_INLINE void make_keys(const Bits* values, int64_t stride, int64_t count, const Bits* flip,
                                Key index, const Format<Bits>& format,
                                Vector<Key, kLanes<Key>>* keys) {
  using Wide = Vector<Key, kLanes<Key>>;
  using Narrow = Vector<Bits, kLanes<Key>>;
  const Narrow narrow_flip = load<Narrow>(flip);
  for (int64_t i = 0; i < count; ++i) {
    const Narrow narrow = load<Narrow>(values + i * stride) ^ narrow_flip;
    const Wide bits = __builtin_convertvector(narrow, Wide);
    const Wide negative_zero = bits == Wide{} + Key{kSign<Bits>};
    const Key low = static_cast<Key>((index + i) << 1);
    keys[i] = (ordered(bits, format) << (4 * sizeof(Key))) | low | (negative_zero & 1);
  }
}

// Keys of padding, larger than the keys of all values.
template <class Key, class Bits>
RIFFLEMIX_INLINE Vector<Key, kLanes<Key>> padding_keys(Key index) {
  return Vector<Key, kLanes<Key>>{} + ((Key{kTop<Bits>} << (4 * sizeof(Key))) | (index << 1));
}

template <class Key>
RIFFLEMIX_INLINE int32_t index_of(Key key) {
  constexpr int half = 4 * sizeof(Key);
  return static_cast<int32_t>((static_cast<std::make_unsigned_t<Key>>(key) << half) >> (half + 1));
}

// Converts `count` vectors of keys back to values, `stride` apart, and indices. Every NaN becomes
// the quiet NaN.
template <class Key, class Bits>
RIFFLEMIX_INLINE void read_keys(const Vector<Key, kLanes<Key>>* const* rows, int64_t offset,
                                int64_t count, const Bits* flip, const Format<Bits>& format,
                                Bits* values, int64_t stride, int32_t* indices) {
  using Narrow = Vector<Bits, kLanes<Key>>;
  using Unsigned = Vector<std::make_unsigned_t<Key>, kLanes<Key>>;
  using Indices = Vector<int32_t, kLanes<Key>>;
  constexpr int half = 4 * sizeof(Key);
  const Narrow narrow_flip = load<Narrow>(flip);
  for (int64_t i = 0; i < count; ++i) {
    const Unsigned all = (Unsigned)rows[i][offset];
    const Narrow order = __builtin_convertvector(all >> half, Narrow);
    const Narrow low = __builtin_convertvector(all & 1, Narrow);
    const Narrow negative = order >> (8 * sizeof(Bits) - 1);
    const Narrow magnitude = (order ^ negative) - negative;
    const Narrow sign = (negative & kSign<Bits>) ^ (low << (8 * sizeof(Bits) - 1)) ^ narrow_flip;
    const Narrow bits = order == kTop<Bits> - 1 ? Narrow{} + format.nan : magnitude | sign;
    std::memcpy(values + i * stride, &bits, sizeof(bits));
    const Indices index = __builtin_convertvector((all << half) >> (half + 1), Indices);
    std::memcpy(indices + i * kLanes<Key>, &index, sizeof(index));
  }
}

}  // namespace rifflemix::permutation
