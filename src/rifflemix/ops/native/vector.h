// Short vectors of float or double, and tokens of any floating-point type as such vectors.
//
// The code uses the compiler's vector types. One source supports every instruction set, and sums
// over features are vectorized in a fixed order, without -ffast-math.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "kernels.h"

namespace rifflemix {

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <class A, int kBytes = kVectorBytes>
struct VectorOf;
template <int kBytes>
struct VectorOf<float, kBytes> {
  typedef float Type __attribute__((vector_size(kBytes)));
  typedef int32_t Integers __attribute__((vector_size(kBytes)));
};
template <int kBytes>
struct VectorOf<double, kBytes> {
  typedef double Type __attribute__((vector_size(kBytes)));
  typedef int64_t Integers __attribute__((vector_size(kBytes)));
};
typedef uint16_t HalfBits __attribute__((vector_size(kVectorBytes / 2)));
typedef uint32_t WordBits __attribute__((vector_size(kVectorBytes)));

template <class A, int kBytes = kVectorBytes>
using Vector = typename VectorOf<A, kBytes>::Type;
template <class A>
constexpr int kLanes = kVectorBytes / sizeof(A);

// Allocator with cache line alignment, so that vectors do not cross cache lines.
template <class A>
struct FromLine {
  using value_type = A;
  static constexpr std::align_val_t kLine{64};

  FromLine() = default;
  template <class B>
  FromLine(const FromLine<B>&) {}
  A* allocate(std::size_t count) {
    return static_cast<A*>(::operator new(count * sizeof(A), kLine));
  }
  void deallocate(A* data, std::size_t) { ::operator delete(data, kLine); }
  template <class B>
  bool operator==(const FromLine<B>&) const { return true; }
  template <class B>
  bool operator!=(const FromLine<B>&) const { return false; }
};
template <class A>
using Buffer = std::vector<A, FromLine<A>>;

// Accumulation type for tokens of type T.
template <class T>
struct Accumulate {
  using Type = float;
};
template <>
struct Accumulate<double> {
  using Type = double;
};
template <class T>
using Acc = typename Accumulate<T>::Type;

template <class To, class From>
RIFFLEMIX_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a change of type, not of size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> spread(A value) {
  return Vector<A, kBytes>{} + value;
}

// Selects `yes` in lanes of `mask` that are all ones, and `no` in lanes that are zero.
template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> select(typename VectorOf<A, kBytes>::Integers mask,
                                          Vector<A, kBytes> yes, Vector<A, kBytes> no) {
  using Integers = typename VectorOf<A, kBytes>::Integers;
  return bits_as<Vector<A, kBytes>>((mask & bits_as<Integers>(yes)) |
                                    (~mask & bits_as<Integers>(no)));
}

// Selects `yes` in lanes with `keep` = -1, and zero in lanes with `keep` = 0. `keep` has one number
// per lane.
template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> where(const int16_t* keep, Vector<A, kBytes> yes) {
  typedef int16_t Halves __attribute__((vector_size(2 * kBytes / sizeof(A))));
  Halves halves;
  std::memcpy(&halves, keep, sizeof(halves));
  const auto mask = __builtin_convertvector(halves, typename VectorOf<A, kBytes>::Integers);
  return select<A, kBytes>(mask, yes, Vector<A, kBytes>{});
}

// The maximum of x and floor; NaN in `x` stays NaN.
template <class A>
RIFFLEMIX_INLINE Vector<A> at_least(Vector<A> x, A floor) {
  return select<A>(x < floor, spread(floor), x);
}

// Adds the lanes by repeated halving.
template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE A sum_lanes(Vector<A, kBytes> v) {
  A lanes[kBytes / sizeof(A)];
  std::memcpy(lanes, &v, sizeof(lanes));
  for (int half = kBytes / sizeof(A) / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Adds the lanes of `first` that are `Distance` apart, and those of `second`. The lanes with bit
// `Distance` contain the sums of `second`.
template <int Distance, class Integers, class V, std::size_t... Lane>
RIFFLEMIX_INLINE V add_lanes(V first, V second, std::index_sequence<Lane...>) {
  constexpr int size = sizeof...(Lane);
#if defined(__clang__)
  return __builtin_shufflevector(first, second,
                                 (Lane & Distance ? int(Lane) - Distance + size : int(Lane))...) +
         __builtin_shufflevector(first, second,
                                 (Lane & Distance ? int(Lane) + size : int(Lane) + Distance)...);
#else
  return __builtin_shuffle(
             first, second, Integers{(Lane & Distance ? int(Lane) - Distance + size : int(Lane))...}) +
         __builtin_shuffle(
             first, second, Integers{(Lane & Distance ? int(Lane) + size : int(Lane) + Distance)...});
#endif
}

// Returns the sum of the lanes of rows[i] in lane i, and overwrites the rows. This takes a third of
// the instructions of `sum_lanes` for each row.
template <class A, int kBytes, int Distance = 1>
RIFFLEMIX_INLINE Vector<A, kBytes> sum_rows(Vector<A, kBytes>* rows) {
  constexpr int size = kBytes / sizeof(A);
  if constexpr (Distance < size) {
    using Integers = typename VectorOf<A, kBytes>::Integers;
#pragma GCC unroll 16
    for (int i = 0; i < size; i += 2 * Distance) {
      rows[i] = add_lanes<Distance, Integers>(rows[i], rows[i + Distance],
                                              std::make_index_sequence<size>());
    }
    return sum_rows<A, kBytes, 2 * Distance>(rows);
  }
  return rows[0];
}

template <class A>
RIFFLEMIX_INLINE Vector<A> load(const A* p) {
  Vector<A> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Loads a vector of type V.
template <class V, class A>
RIFFLEMIX_INLINE V load_as(const A* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Stores a vector of any length, without conversion.
template <class V, class A>
RIFFLEMIX_INLINE void store_as(A* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

RIFFLEMIX_INLINE Vector<float> load(const Bfloat16* p) {
  HalfBits halves;
  std::memcpy(&halves, p, sizeof(halves));
  return bits_as<Vector<float>>(__builtin_convertvector(halves, WordBits) << 16);
}

RIFFLEMIX_INLINE Vector<float> load(const Float16* p) {
  HalfBits halves;
  std::memcpy(&halves, p, sizeof(halves));
  const WordBits bits = __builtin_convertvector(halves, WordBits);
  // The exponent biases differ by 112. Multiplying by 2^112 also works for subnormal numbers.
  const Vector<float> magnitude = bits_as<Vector<float>>((bits & 0x7fffu) << 13) * 0x1p112f;
  const WordBits special = (WordBits)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
  return bits_as<Vector<float>>(bits_as<WordBits>(magnitude) | special | ((bits & 0x8000u) << 16));
}

template <class A>
RIFFLEMIX_INLINE void store(A* p, Vector<A> v) {
  std::memcpy(p, &v, sizeof(v));
}

// Both conversions to 16 bits round to nearest, ties to even, and preserve NaN.

// Returns 32-bit words whose upper halves are the numbers in bfloat16.
RIFFLEMIX_INLINE WordBits rounded_bits(Vector<float> v) {
  const WordBits bits = bits_as<WordBits>(v);
  const WordBits nan = (WordBits)(v != v);
  return (nan & 0x7fc00000u) | (~nan & (bits + 0x7fffu + ((bits >> 16) & 1u)));
}

RIFFLEMIX_INLINE void store(Bfloat16* p, Vector<float> v) {
  const HalfBits halves = __builtin_convertvector(rounded_bits(v) >> 16, HalfBits);
  std::memcpy(p, &halves, sizeof(halves));
}

RIFFLEMIX_INLINE void store(Float16* p, Vector<float> v) {
  const WordBits all = bits_as<WordBits>(v);
  const WordBits bits = all & 0x7fffffffu;
  const WordBits normal = (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  // Adding 0.5 rounds a subnormal result and leaves its bits in the low bits of the sum.
  const WordBits small = bits_as<WordBits>(bits_as<Vector<float>>(bits) + 0.5f) - 0x3f000000u;
  const WordBits is_small = (WordBits)(bits < (113u << 23));
  const WordBits is_large = (WordBits)(bits >= (143u << 23));
  const WordBits nan = (WordBits)(bits > 0x7f800000u);
  const WordBits finite = (is_small & small) | (~is_small & normal);
  const WordBits large = (nan & 0x7e00u) | (~nan & 0x7c00u);
  const WordBits result = (is_large & large) | (~is_large & finite) | ((all >> 16) & 0x8000u);
  const HalfBits halves = __builtin_convertvector(result, HalfBits);
  std::memcpy(p, &halves, sizeof(halves));
}

// Loads the first `count` values, followed by zeros; `count` may exceed a vector.
template <class T>
RIFFLEMIX_INLINE Vector<Acc<T>> load(const T* p, int64_t count) {
  constexpr int lanes = kLanes<Acc<T>>;
  if (count >= lanes) return load(p);
  T some[lanes] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = p[i];
  return load(some);
}

template <class T>
RIFFLEMIX_INLINE void store(T* p, Vector<Acc<T>> v, int64_t count) {
  constexpr int lanes = kLanes<Acc<T>>;
  if (count >= lanes) return store(p, v);
  T some[lanes];
  store(some, v);
  for (int64_t i = 0; i < count; ++i) p[i] = some[i];
}

// Returns last(p, r, power) for numbers x <= 0, where exp(x) = power * (1 + p * r). Numbers below
// -87 are clamped to -87, because power would be subnormal.
template <int kBytes, class Last>
RIFFLEMIX_INLINE Vector<float, kBytes> exponential(Vector<float, kBytes> x, const Last& last) {
  using Floats = Vector<float, kBytes>;
  using Integers = typename VectorOf<float, kBytes>::Integers;
  const Floats floor = Floats{} - 87.0f;
  const Floats clamped = x < floor ? floor : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const Floats shifted = clamped * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Floats r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = Floats{} + 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  const Integers power = (bits_as<Integers>(shifted) << 23) + (127 << 23);
  return last(p, r, bits_as<Floats>(power));
}

// exp(x) for x <= 0, within 2 units in the last place; 0 below -87.
template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> exp_of_negative(Vector<A, kBytes> x) {
  using Values = Vector<A, kBytes>;
  if constexpr (sizeof(A) == 4) {
    const Values y = exponential<kBytes>(x, [](Values p, Values r, Values power) RIFFLEMIX_BODY {
      return (p * r + 1.0f) * power;
    });
    return x < Values{} - 87.0f ? Values{} : y;
  } else {
    for (int i = 0; i < kBytes / 8; ++i) x[i] = std::exp(x[i]);
    return x;
  }
}

// exp(x) - 1 for x <= 0, within 2 units in the last place.
template <class A, int kBytes = kVectorBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> exp_less_one(Vector<A, kBytes> x) {
  using Values = Vector<A, kBytes>;
  if constexpr (sizeof(A) == 4) {
    return exponential<kBytes>(x, [](Values p, Values r, Values power) RIFFLEMIX_BODY {
      return p * r * power + (power - 1.0f);
    });
  } else {
    for (int i = 0; i < kBytes / 8; ++i) x[i] = std::expm1(x[i]);
    return x;
  }
}

}  // namespace rifflemix
