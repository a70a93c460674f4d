# Flags that every translation unit of ours gets. Contraction is off everywhere: the bits of a sum
# must not depend on whether a compiler found an fma.
add_library(nibble_flags INTERFACE)
target_compile_options(nibble_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
  -ffp-contract=off -fno-math-errno -fno-trapping-math
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # GCC 12 sees one in every "text" + std::string
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(nibble_flags INTERFACE -fsanitize=address,undefined)
endif()
if(NIBBLE_FUZZ)
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(NIBBLE_CCACHE ccache)
if(NIBBLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
endif()
