"""The contract: messages and stubs generated from protos/aeenc/v1 by `make proto`. Never edited by hand."""
