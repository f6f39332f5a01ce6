"""Keeps runs, their trees and their pairs in Redis."""
