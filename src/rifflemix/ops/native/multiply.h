// Small matrix products for kernels with matrices in the CPU cache.

#pragma once

#include "vector.h"

namespace rifflemix {

// Number of columns processed together. B and C are padded to whole panels of columns.
template <class A>
constexpr int kPanel = 2 * kLanes<A>;

template <class A>
constexpr int64_t whole_panels(int64_t columns) {
  return (columns + kPanel<A> - 1) / kPanel<A> * kPanel<A>;
}

// A matrix whose element (i, j) is data[i * row + j * column].
template <class A>
struct Matrix {
  A* data;
  int64_t row, column;
};

// Row t of panel p of B starts at data[p * panel + t * row].
template <class A>
struct Panels {
  const A* data;
  int64_t panel, row;
};

// Number of rows of two vectors processed together: enough independent sums to hide the latency of
// additions.
constexpr int kRowsAtOnce = 4;

// Here, a panel of B is one vector.
template <int kRows, int kVectors, int kBytes, class A>
RIFFLEMIX_INLINE void multiply_rows(int64_t inner, Matrix<const A> a, Panels<A> b, A* c,
                                    int64_t c_row, bool add) {
  using Values = Vector<A, kBytes>;
  constexpr int lanes = kBytes / sizeof(A);
  Values sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = add ? load_as<Values>(c + i * c_row + v * lanes) : Values{};
    }
  }
  for (int64_t t = 0; t < inner; ++t) {
    Values values[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      values[v] = load_as<Values>(b.data + v * b.panel + t * b.row);
    }
    for (int i = 0; i < kRows; ++i) {
      const Values factor = a.data[i * a.row + t * a.column] - Values{};  // broadcast, no addition
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * values[v];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) store_as(c + i * c_row + v * lanes, sums[i][v]);
  }
}

// The last rows of a product, fewer than kRows.
template <int kRows, int kVectors, int kBytes, class A>
RIFFLEMIX_INLINE void multiply_rest(int64_t rows, int64_t inner, Matrix<const A> a, Panels<A> b,
                                    A* c, int64_t c_row, bool add) {
  if constexpr (kRows > 1) {
    if (rows == kRows - 1) {
      multiply_rows<kRows - 1, kVectors, kBytes>(inner, a, b, c, c_row, add);
    } else {
      multiply_rest<kRows - 1, kVectors, kBytes>(rows, inner, a, b, c, c_row, add);
    }
  }
}

// Multiplies kVectors vectors of columns.
template <int kVectors, int kBytes, class A>
RIFFLEMIX_INLINE void multiply_vectors(int64_t rows, int64_t inner, Matrix<const A> a, Panels<A> b,
                                       A* c, int64_t c_row, bool add) {
  constexpr int at_once = 2 * kRowsAtOnce / kVectors;
  for (; rows >= at_once; rows -= at_once, a.data += at_once * a.row, c += at_once * c_row) {
    multiply_rows<at_once, kVectors, kBytes>(inner, a, b, c, c_row, add);
  }
  multiply_rest<at_once, kVectors, kBytes>(rows, inner, a, b, c, c_row, add);
}

// C = A B, or C += A B. Sums run over `inner` in order, for all sizes and vector lengths.
template <int kBytes, class A>
RIFFLEMIX_INLINE void multiply(int64_t rows, int64_t inner, int64_t columns, Matrix<const A> a,
                               Panels<A> b, A* c, int64_t c_row, bool add) {
  constexpr int64_t panel = kPanel<A>;
  if constexpr (kBytes == panel * sizeof(A)) {  // one panel is one vector
    for (; columns > panel; columns -= 2 * panel, b.data += 2 * b.panel, c += 2 * panel) {
      multiply_vectors<2, kBytes>(rows, inner, a, b, c, c_row, add);
    }
    if (columns > 0) multiply_vectors<1, kBytes>(rows, inner, a, b, c, c_row, add);
  } else {
    for (; columns > 0; columns -= panel, b.data += b.panel, c += panel) {
      multiply_vectors<2, kBytes>(rows, inner, a, {b.data, kLanes<A>, b.row}, c, c_row, add);
    }
  }
}

// The same for contiguous rows of B, padded to vectors of kVectorBytes. Computes with vectors of
// kBytes.
template <int kBytes, class A>
RIFFLEMIX_INLINE void multiply_whole(int64_t rows, int64_t inner, int64_t columns,
                                     Matrix<const A> a, const A* b, int64_t b_row, A* c,
                                     int64_t c_row, bool add) {
  constexpr int64_t lanes = kBytes / sizeof(A);
  int64_t j = 0;
  for (; j + 2 * lanes <= columns; j += 2 * lanes) {
    multiply_vectors<2, kBytes>(rows, inner, a, {b + j, lanes, b_row}, c + j, c_row, add);
  }
  for (; j + lanes <= columns; j += lanes) {
    multiply_vectors<1, kBytes>(rows, inner, a, {b + j, 0, b_row}, c + j, c_row, add);
  }
  if (j < columns) {
    multiply_vectors<1, kVectorBytes>(rows, inner, a, {b + j, 0, b_row}, c + j, c_row, add);
  }
}

}  // namespace rifflemix
