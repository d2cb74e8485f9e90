// Small matrix products for kernels whose matrices are in a processor's cache.

#pragma once

#include "vector.h"

namespace rifflemix {

// Columns that are worked on together; the columns of B and C come in whole panels.
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

template <class A>
constexpr int kRowsAtOnce = 4;

template <int kRows, class A>
RIFFLEMIX_INLINE void multiply_rows(const A* a, int64_t row, int64_t column, int64_t inner,
                                    const A* b, int64_t b_row, A* c, int64_t c_row, bool add) {
  constexpr int lanes = kLanes<A>;
  Vector<A> left[kRows], right[kRows];
  for (int i = 0; i < kRows; ++i) {
    left[i] = add ? load(c + i * c_row) : Vector<A>{};
    right[i] = add ? load(c + i * c_row + lanes) : Vector<A>{};
  }
  for (int64_t t = 0; t < inner; ++t) {
    const Vector<A> b_left = load(b + t * b_row), b_right = load(b + t * b_row + lanes);
    for (int i = 0; i < kRows; ++i) {
      const Vector<A> factor = a[i * row + t * column] - Vector<A>{};  // spread, and no addition
      left[i] += factor * b_left;
      right[i] += factor * b_right;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store(c + i * c_row, left[i]);
    store(c + i * c_row + lanes, right[i]);
  }
}

// C = A B, or C += A B; sums run over `inner` in order, whatever the sizes.
template <class A>
RIFFLEMIX_INLINE void multiply(int64_t rows, int64_t inner, int64_t columns, Matrix<const A> a,
                               Panels<A> b, A* c, int64_t c_row, bool add) {
  constexpr int64_t some = kRowsAtOnce<A>;
  for (int64_t panel = 0; panel * kPanel<A> < columns; ++panel) {
    const A* b_panel = b.data + panel * b.panel;
    A* c_panel = c + panel * kPanel<A>;
    int64_t i = 0;
    for (; i + some <= rows; i += some) {
      multiply_rows<kRowsAtOnce<A>>(a.data + i * a.row, a.row, a.column, inner, b_panel, b.row,
                                    c_panel + i * c_row, c_row, add);
    }
    for (; i < rows; ++i) {
      multiply_rows<1>(a.data + i * a.row, a.row, a.column, inner, b_panel, b.row,
                       c_panel + i * c_row, c_row, add);
    }
  }
}

}  // namespace rifflemix
