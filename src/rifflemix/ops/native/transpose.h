// Transpose of a square of values in registers.

#pragma once

#include <utility>

#include "keys.h"

namespace rifflemix::permutation {

// Exchanges the off-diagonal blocks of `Distance` lanes of two rows that are `Distance` apart.
template <int Distance, class V, std::size_t... Lane>
RIFFLEMIX_INLINE void transpose_blocks(V& first, V& second, std::index_sequence<Lane...>) {
  constexpr int size = sizeof...(Lane);
#if defined(__clang__)
  const V low = __builtin_shufflevector(
      first, second, (Lane & Distance ? int(Lane) - Distance + size : int(Lane))...);
  second = __builtin_shufflevector(
      first, second, (Lane & Distance ? int(Lane) + size : int(Lane) + Distance)...);
#else
  const V low = __builtin_shuffle(
      first, second, V{(Lane & Distance ? int(Lane) - Distance + size : int(Lane))...});
  second = __builtin_shuffle(
      first, second, V{(Lane & Distance ? int(Lane) + size : int(Lane) + Distance)...});
#endif
  first = low;
}

template <int Distance, int Size, class V>
RIFFLEMIX_INLINE void transpose_registers(V* rows) {
  if constexpr (Distance < Size) {
#pragma GCC unroll 16
    for (int i = 0; i < Size; ++i) {
      if (i & Distance) continue;
      transpose_blocks<Distance>(rows[i], rows[i + Distance], std::make_index_sequence<Size>());
    }
    transpose_registers<2 * Distance, Size>(rows);
  }
}

// to[j * to_stride + i] = from(i)[j] for a square with one vector per row.
template <class T, class From>
RIFFLEMIX_INLINE void transpose(const From& from, T* to, int64_t to_stride) {
  constexpr int size = kVectorBytes / sizeof(T);
  Vector<T, size> rows[size];
#pragma GCC unroll 16
  for (int i = 0; i < size; ++i) rows[i] = load<Vector<T, size>>(from(i));
  transpose_registers<1, size>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < size; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(rows[i]));
}

}  // namespace rifflemix::permutation
