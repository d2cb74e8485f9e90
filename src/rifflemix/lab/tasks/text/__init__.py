"""Text tasks: reviews, sentences, pairs of documents and language modeling."""
