# SPDX-License-Identifier: GPL-2.0-only
# Another load for Ruby, without an end: trees of objects, text, sorting with blocks, exceptions
# with a cause, lazy enumerators, matrices, and counts of parts of a text.
class Node
  include Enumerable
  def initialize(key) = (@key = key; @left = @right = nil)
  def insert(key)
    if key < @key
      @left ? @left.insert(key) : @left = Node.new(key)
    else
      @right ? @right.insert(key) : @right = Node.new(key)
    end
  end

  def each(&block)
    @left&.each(&block)
    block.call(@key)
    @right&.each(&block)
  end
end

def trees
  root = Node.new(500)
  200.times { |i| root.insert(i * 7919 % 1009) }
  root.select(&:even?).sum
end

def text
  words = (1..200).map { |i| format('%04x-%d', i * 7919 % 65536, i) }
  joined = words.join(';')
  found = joined.scan(/([0-9a-f]{2})+-(\d+)/).map { |_, digits| digits.to_i }
  turned = joined.gsub(/\d+/) { |digits| digits.reverse }
  found.sum + turned.upcase.split(';').size + words.sort_by { |word| [word.size, word] }.size
end

def failing(depth)
  return Integer('x') if depth.zero?
  begin
    failing(depth - 1)
  rescue ArgumentError
    raise ArgumentError, "level #{depth}"
  end
end

def errors
  failing(12)
rescue ArgumentError => e
  count = 0
  while e
    count += e.backtrace.size
    e = e.cause
  end
  count
end

def matrix(size)
  a = Array.new(size) { |i| Array.new(size) { |j| 1.0 / (i + j + 1) } }
  b = a.transpose
  a.sum { |row| b.sum { |column| row.zip(column).sum { |x, y| x * y } } }
end

def letters(length)
  state = 42
  text = +''
  length.times { text << 'acgt'[(state = (state * 3877 + 29573) % 139968) % 4] }
  counts = Hash.new(0)
  text.each_char.each_cons(4) { |part| counts[part.join] += 1 }
  counts.max_by { |_, count| count }.last + text.reverse.tr('acgt', 'tgca').size
end

def lazy = (1..).lazy.map { |i| i * i }.select { |i| i % 3 == 1 }.first(100).sum
def product = (1..60).inject(:*).to_s.size

loop { [trees, text, errors, matrix(12), letters(400), lazy, product].sum }
