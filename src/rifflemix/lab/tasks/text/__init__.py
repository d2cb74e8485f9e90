"""Tasks on text: reviews, sentences, pairs of documents, language modelling."""
