// Conversion between tokens of any floating-point type and rows of numbers for matrix products.

#pragma once

#include "multiply.h"

namespace rifflemix {

// (batch, heads, tokens, features) of any type, with the strides of the first three dimensions;
// features are contiguous.
struct View {
  void* data;
  int64_t batch, head, token;
  template <class T>
  RIFFLEMIX_INLINE T* at(int64_t b, int64_t h, int64_t n) const {
    return static_cast<T*>(data) + b * batch + h * head + n * token;
  }
};

// Tokens [first, last) of a slice.
struct Tokens {
  int64_t b, h, first, last;
};

// Functions that convert tokens of one type to rows of numbers, and back. Kernels are shared by all
// types with the same accumulation type.
template <class A>
struct Rows {
  void (*pack)(const View& x, const Tokens& tokens, int64_t width, int64_t padded, A factor,
               A* rows);
  void (*write)(const A* rows, int64_t padded, int64_t width, A factor, const View& x,
                const Tokens& tokens);
};

// Returns the functions for tokens of type T.
template <class T>
Rows<Acc<T>> rows_of();

// Transposes rows of tokens into panels: entry (d, n) is panels[n / P][d][n % P]. The last panel is
// padded with zeros.
template <class A>
RIFFLEMIX_INLINE void transpose_rows(const A* rows, int64_t count, int64_t width, int64_t padded,
                                     A* panels) {
  constexpr int64_t panel = kPanel<A>;
  for (int64_t first = 0; first < count; first += panel, panels += panel * width) {
    const int64_t some = std::min<int64_t>(panel, count - first);
    for (int64_t d = 0; d < width; ++d) {
      for (int64_t j = 0; j < some; ++j) panels[d * panel + j] = rows[(first + j) * padded + d];
      for (int64_t j = some; j < panel; ++j) panels[d * panel + j] = A(0);
    }
  }
}

}  // namespace rifflemix
