// Tokens of any floating-point type as rows of numbers for small matrix products, and back.

#pragma once

#include "multiply.h"

namespace rifflemix {

// (batch, heads, tokens, features) of any type, with the strides of the first three; features lie
// side by side.
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

// How tokens of one type become rows of numbers, and back. All that lies between is the same for
// all types that are summed in one.
template <class A>
struct Rows {
  void (*pack)(const View& x, const Tokens& tokens, int64_t width, int64_t padded, A factor,
               A* rows);
  void (*write)(const A* rows, int64_t padded, int64_t width, A factor, const View& x,
                const Tokens& tokens);
};

// For tokens of type T.
template <class T>
Rows<Acc<T>> rows_of();

// Rows of tokens, transposed, in panels: entry (d, n) is panels[n / P][d][n % P], zeros at the end.
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
